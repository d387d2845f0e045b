// Exit codes of fdma-maskc, and the value-or-failure type that its verbs return.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fdma/base/result.hpp"

namespace fdma::maskc {

/// What the process returns to the shell (docs/maskc.md).
enum class ExitCode : int {
  ok = 0,
  mask_wrong =
      1,      ///< check, diff: wrong or different; a dense value that is neither; not canonical
  usage = 2,  ///< options, specification, tables
  file = 3,   ///< absent, truncated, corrupt, unwritable, disk full
  unsupported = 4,  ///< a valid request that this build or machine cannot serve, memory included
  internal = 70,
  interrupted = 130,
};

/// The exit code that an error of the library leads to.
ExitCode exit_code_of(ErrorCode code);
/// "usage", "file", ..
std::string_view to_string(ExitCode code);

/// One place in a specification and what is wrong there.
struct SourcePosition {
  std::string source;  ///< the name of the specification, as the message prints it
  std::int64_t line;   ///< from 1 on
  std::int64_t column;
  std::string message;
};

/// Why a verb stopped: the exit code and what to print on standard error.
struct CommandFailure {
  ExitCode exit_code;
  std::string message;
  std::string argument = {};  ///< the option at fault; empty: the message may begin with it
  std::vector<SourcePosition> positions = {};
};

/// A value or a CommandFailure. An Error of the library converts by its code, so that FDMA_TRY
/// works with both.
template <class T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Outcome(CommandFailure failure) : state_(std::in_place_index<1>, std::move(failure)) {}
  Outcome(Error error)
      : Outcome(CommandFailure{exit_code_of(error.code), std::move(error.message)}) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  CommandFailure& error() & { return std::get<1>(state_); }
  const CommandFailure& error() const& { return std::get<1>(state_); }
  CommandFailure&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, CommandFailure> state_;
};

/// What Outcome<Nothing> holds on success.
struct Nothing {};
using Status = Outcome<Nothing>;

inline CommandFailure usage_failure(std::string message) {
  return {ExitCode::usage, std::move(message)};
}

}  // namespace fdma::maskc
