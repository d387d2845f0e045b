// Whether this program can be started to read for another process.
#pragma once

namespace fdma::io {

/// serve_isolated_reads was called in this process and returned.
bool this_program_serves();

}  // namespace fdma::io
