// HDF5 identifiers that close themselves, and HDF5's reasons as text.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace fdma::io {

/// Owns one HDF5 identifier; invalid ids (negative) are allowed and close nothing.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() { reset(); }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now; negative if HDF5 says that it failed to close.
  herr_t reset() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 ? close_(id) : 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// A scope in which HDF5 may be called. It holds the lock that serialises FDMA's calls (the library
/// need not be built thread-safe). It keeps HDF5 from printing its error stack and from loading
/// plugins, by which a file names code to run. The caller's settings are restored afterwards. Every
/// public function of fdma::io opens one; nesting is allowed.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
  unsigned plugin_state_ = 0;
  bool has_plugin_state_ = false;
};

/// HDF5's last error messages, innermost reason first: "bad object header version number"; empty if
/// there are none. Clears the stack.
std::string last_reason();

/// `reason` with a hint appended when it looks like a file of a newer HDF5 than this library reads.
std::string explain(const std::string& reason);

}  // namespace fdma::io
