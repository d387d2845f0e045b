// The text of --version: the tool's version, its libraries, and what runs on this machine.
#pragma once

#include <string>

namespace fdma::maskc {

/// The first line is "fdma-maskc" and the version. The others name the libraries, the filters of
/// HDF5, the instruction set of the CPU backend, and each backend that runs here, or why it does not.
std::string version_text();

}  // namespace fdma::maskc
