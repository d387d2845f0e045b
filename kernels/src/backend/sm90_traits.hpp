// What sm90 computes, also in a build without its kernels.
#pragma once

#include "fdma/kernels/backends.hpp"

namespace fdma::sm90 {

const BackendTraits& traits();

}  // namespace fdma::sm90
