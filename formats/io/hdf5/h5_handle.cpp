#include "io/hdf5/h5_handle.hpp"

#include <cstdlib>
#include <string_view>

#include "io/hdf5/lzf_filter.hpp"

namespace fdma::io {
namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

// H5E_WALK_UPWARD starts at the innermost function. Its first description is the reason; the
// descriptions above it repeat the call in the words of the interface.
herr_t keep_first(unsigned n, const H5E_error2_t* error, void* out) {
  auto& reason = *static_cast<std::string*>(out);
  if (n == 0 && error->desc != nullptr) reason = error->desc;
  return 0;
}

// HDF5 reports an unknown version in words only, such as "bad version number".
bool is_unknown_version(std::string_view reason) {
  const auto contains = [&](std::string_view word) {
    return reason.find(word) != std::string_view::npos;
  };
  return contains("version") &&
         (contains("bad") || contains("unknown") || contains("wrong") || contains("unsupported"));
}

// Objects that HDF5 loses internally while it reads damaged files keep its exit handler from
// finishing, which it reports on stderr unless error printing is off. Handlers run in reverse
// order, so this one is registered after HDF5's own.
void be_quiet_at_exit() {
  static const bool registered =
      H5open() >= 0 && std::atexit([] { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }) == 0;
  static_cast<void>(registered);
}

}  // namespace

Session::Session() : lock_(library_mutex()) {
  be_quiet_at_exit();
  H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  has_plugin_state_ = H5PLget_loading_state(&plugin_state_) >= 0;
  if (has_plugin_state_) H5PLset_loading_state(0);
  register_lzf_filter();
}

Session::~Session() {
  if (has_plugin_state_) H5PLset_loading_state(plugin_state_);
  H5Eclear2(H5E_DEFAULT);
  H5Eset_auto2(H5E_DEFAULT, print_, print_data_);
}

std::string last_reason() {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
  H5Eclear2(H5E_DEFAULT);
  return reason;
}

std::string explain(const std::string& reason) {
  if (!is_unknown_version(reason)) return reason;
  return reason +
         "; if a newer HDF5 wrote the file (h5py with libver='latest'), rewrite it with "
         "h5py.File(path, 'w', libver=('v108', 'v110'))";
}

}  // namespace fdma::io
