// Names of cuda/, which every GPU backend shares, are used in sm90/ without their namespace.
#pragma once

namespace fdma::gpu {}

namespace fdma::sm90 {
using namespace gpu;
}
