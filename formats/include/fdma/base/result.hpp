// A value or an error: what every FDMA function that can fail returns.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace fdma {

/// What kind of failure an Error reports. The list is closed: tools map it to exit codes, Python to
/// exceptions.
enum class ErrorCode {
  syntax,            ///< a mask specification cannot be parsed or typed
  invalid_argument,  ///< a value is outside its contract, an undefined mask cell included
  shape_mismatch,    ///< extents disagree
  unsupported,       ///< a valid request that this build or backend does not serve
  corrupt_file,      ///< a file exists but its contents are inconsistent
  io,                ///< the operating system or HDF5 refused
  out_of_memory,
  cuda,
  internal,  ///< a defect of FDMA itself
};

/// The name of a code as written in diagnostics and JSON, for example "invalid_argument".
std::string_view to_string(ErrorCode code);

/// A failure: its code and one sentence that names the argument, what was expected and what came.
struct Error {
  ErrorCode code;
  std::string message;
};

/// A value of type T or an Error; the interface is a subset of std::expected<T, Error>.
///
/// Example     Result<int> r = parse(text); if (!r) return r.error(); use(*r);
/// Invariants  value() and operator* need has_value(); error() needs !has_value()
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace fdma

#define FDMA_CONCAT_INNER(a, b) a##b
#define FDMA_CONCAT(a, b) FDMA_CONCAT_INNER(a, b)

/// FDMA_TRY(auto mask, read_mask(path)); declares `mask` or returns the error from the enclosing
/// function.
#define FDMA_TRY(declaration, expression)                       \
  auto FDMA_CONCAT(fdma_try_, __LINE__) = (expression);         \
  if (!FDMA_CONCAT(fdma_try_, __LINE__).has_value())            \
    return std::move(FDMA_CONCAT(fdma_try_, __LINE__)).error(); \
  declaration = *std::move(FDMA_CONCAT(fdma_try_, __LINE__))

/// FDMA_TRY_VOID(validate(mask)); returns the error of a Result<void> from the enclosing function.
#define FDMA_TRY_VOID(expression)                                            \
  do {                                                                       \
    auto fdma_try_void = (expression);                                       \
    if (!fdma_try_void.has_value()) return std::move(fdma_try_void).error(); \
  } while (false)
