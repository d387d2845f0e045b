// The effect of SIGINT, SIGTERM and SIGHUP on a run.
//
// Every thread blocks the signals; one thread waits for them. A signal that comes before the output
// is moved into place removes what was written so far and ends the process at once with status 130,
// whatever the other threads are doing in a library. The file that stood there before is then
// untouched.
//
// After the rename the result is in place. A signal then lets the run go on to its end: the run still
// prints what it has done, and its status says that it succeeded. A second signal ends this part too,
// with the error of a standard output that cannot be written. (kill -9 leaves the temporary file
// behind, but never a partial output.)
#pragma once

#include <string>

namespace fdma::maskc {

/// Blocks the signals and starts the waiting thread; call once, before any other thread exists.
/// Signals that are ignored on entry (nohup) stay ignored. `verb` names the tool in the message.
void start_interrupt_handling(const std::string& verb);

/// Ends the process in the same way after `seconds` seconds, with status 4 and a message that names
/// the current step (progress.hpp). A run whose result is in place goes on to its end. Call this
/// after start_interrupt_handling.
void start_time_limit(const std::string& verb, double seconds);

}  // namespace fdma::maskc
