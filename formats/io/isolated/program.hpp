// Whether this program can be started as the reading process of another one.
#pragma once

namespace fdma::io {

/// True iff serve_isolated_reads was called in this process and returned.
bool this_program_serves();

}  // namespace fdma::io
