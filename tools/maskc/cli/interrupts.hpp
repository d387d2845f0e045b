// What SIGINT, SIGTERM and SIGHUP do to a run.
//
// The signals are blocked in every thread and taken by one thread that waits for them. Until the
// output is moved into place it removes what was written so far and ends the process with status
// 130 at once, however deep in a library the other threads are: what was there before is still
// there. From the rename on the result is there, so the run goes on to its end, which is to print
// what it has done, and its status says that it is done; a second signal ends also that, as
// standard output that cannot be written. (kill -9 leaves the temporary file behind, never a
// partial output.)
#pragma once

#include <string>

namespace fdma::maskc {

/// Blocks the signals and starts the waiting thread; call once, before any other thread exists.
/// Signals that are ignored on entry (nohup) stay ignored. `verb` names the tool in the message.
void start_interrupt_handling(const std::string& verb);

/// Ends the process in the same way once so many seconds are over, with status 4 and a message that
/// says in which step (progress.hpp); a run whose result is in place goes on to its end. To be
/// called after start_interrupt_handling.
void start_time_limit(const std::string& verb, double seconds);

}  // namespace fdma::maskc
