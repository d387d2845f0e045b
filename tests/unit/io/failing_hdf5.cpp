// Makes HDF5 fail on request. This program's H5Pset_fclose_degree stands before that of the
// library, and every opening of a file for reading calls it. The environment variable
// FDMA_TEST_HDF5 says what it does; without the variable it calls the library's function.
#include <dlfcn.h>
#include <hdf5.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

extern "C" herr_t H5Pset_fclose_degree(hid_t list, H5F_close_degree_t degree) {
  const char* wanted = std::getenv("FDMA_TEST_HDF5");
  const std::string_view what = wanted != nullptr ? wanted : "";
  if (what == "segv") {
    signal(SIGSEGV, SIG_DFL);  // not that of a sanitizer
    raise(SIGSEGV);
  }
  if (what == "abort") {
    signal(SIGABRT, SIG_DFL);
    raise(SIGABRT);
  }
  if (what == "kill") raise(SIGKILL);
  if (what == "exit") _exit(7);
  if (what == "sleep") sleep(100);
  if (what == "loop") {
    for (volatile bool forever = true; forever;) {
    }
  }
  if (what == "memory") {
    std::vector<std::vector<char>> eaten;
    for (;;) eaten.emplace_back(std::size_t{16} << 20, 'x');
  }
  if (what == "garbage") {
    std::vector<char> bytes(1 << 16, '\x7f');
    send(3, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    sleep(100);
  }
  static const auto original = reinterpret_cast<herr_t (*)(hid_t, H5F_close_degree_t)>(
      dlsym(RTLD_NEXT, "H5Pset_fclose_degree"));
  return original(list, degree);
}
