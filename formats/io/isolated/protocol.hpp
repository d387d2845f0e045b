// What the process that asks and the process that reads say to each other.
//
// A request is its kind, the path and the name of the object, two limits, and then the options for
// a dense mask, type and extents for a tensor. The answer is `started`, any number of `progress`,
// and one `result` or `error`.
#pragma once

#include <cstdint>

namespace fdma::io {

/// First argument of a process that is to read; the second is the process that it reads for.
inline constexpr const char* kServeArgument = "--fdma-isolated-reader";

enum class Request : std::uint64_t {
  dense_mask,
  table,
  peer_group,
  mask_names,
  mask,
  object,
  tensor_spec,
  tensor,
  contents,
};
inline constexpr auto kLastRequest = static_cast<std::uint64_t>(Request::contents);

enum class Answer : std::uint64_t { started, progress, error, result };
inline constexpr auto kLastAnswer = static_cast<std::uint64_t>(Answer::result);

/// Bytes that a request or an answer other than a result may take.
inline constexpr std::int64_t kMaxSmallMessage = std::int64_t{4} << 20;
/// Bytes of the file for which one more second of CPU time without progress is allowed.
inline constexpr std::int64_t kBytesPerSecond = std::int64_t{16} << 20;

}  // namespace fdma::io
