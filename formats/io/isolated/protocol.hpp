// The protocol between the process that asks and the process that reads.
//
// A request is its kind, the path, the name of the object and two limits, followed by the options
// for a dense mask, the cast for a table, or the type and extents for a tensor. The answer is `started`, any number of
// `progress`, and one `result` or `error`.
#pragma once

#include <cstdint>

namespace fdma::io {

/// First argument of a reading process. The second is the process that it reads for.
inline constexpr const char* kServeArgument = "--fdma-isolated-reader";

enum class Request : std::uint64_t {
  dense_mask,
  table,
  interop_group,
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

/// Limit of a request, and of an answer other than a result, in bytes.
inline constexpr std::int64_t kMaxSmallMessage = std::int64_t{4} << 20;
/// For each so many bytes of the file, one more second of CPU time without progress is allowed.
inline constexpr std::int64_t kBytesPerSecond = std::int64_t{16} << 20;

}  // namespace fdma::io
