// The backends that the registry begins with.
#pragma once

#include <memory>
#include <vector>

#include "fdma/kernels/attention_backend.hpp"

namespace fdma {

/// cpu and sm90, in the order of Backend::cpu and Backend::sm90. A backend that this build leaves
/// out is there with its traits, so that plans for it can be made, and says why it cannot run.
std::vector<std::unique_ptr<AttentionBackend>> known_backends();

}  // namespace fdma
