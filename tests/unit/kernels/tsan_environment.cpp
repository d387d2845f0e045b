// Under ThreadSanitizer the libraries that masks are made with run on one thread: they use the
// oneTBB of the system, whose waiting ThreadSanitizer does not see. Kernels do not (tests/tsan).
#if defined(__SANITIZE_THREAD__)
#include <tbb/global_control.h>

namespace {

const tbb::global_control kOneThread(tbb::global_control::max_allowed_parallelism, 1);

}  // namespace
#endif
