// How much memory a process may still take.
#pragma once

#include <cstdint>

namespace fdma::maskc {

/// Bytes that this machine, and the control group (version 2) that the process is in, would still
/// give; 0 if the system does not say.
std::int64_t available_memory_bytes();

}  // namespace fdma::maskc
