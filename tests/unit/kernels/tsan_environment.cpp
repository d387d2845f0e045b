// Under ThreadSanitizer the libraries that make masks run on one thread, because they use the
// system's oneTBB, whose waits ThreadSanitizer does not see. Kernels do not use it (tests/tsan).
#if defined(__SANITIZE_THREAD__)
#include <tbb/global_control.h>

namespace {

const tbb::global_control kOneThread(tbb::global_control::max_allowed_parallelism, 1);

}  // namespace
#endif
