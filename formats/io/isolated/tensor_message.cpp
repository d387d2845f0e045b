#include "io/isolated/tensor_message.hpp"

#include <limits>

namespace fdma::io {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;

Error wrong(const char* text) { return {ErrorCode::corrupt_file, text}; }

}  // namespace

void write_message(MessageWriter& out, const TensorSpec& spec) {
  out.number(static_cast<std::uint64_t>(spec.dtype));
  out.integer(spec.rank);
  for (const std::int64_t extent : spec.extents) out.integer(extent);
}

Result<TensorSpec> read_spec_message(MessageReader& in) {
  TensorSpec spec;
  FDMA_TRY(const std::uint64_t dtype, in.number(static_cast<std::uint64_t>(DType::float64)));
  spec.dtype = static_cast<DType>(dtype);
  FDMA_TRY(const std::int64_t rank, in.integer(0, kMaxRank));
  spec.rank = static_cast<int>(rank);
  std::int64_t bytes = size_bytes(spec.dtype);
  for (int d = 0; d < kMaxRank; ++d) {
    std::int64_t& extent = spec.extents[static_cast<std::size_t>(d)];
    FDMA_TRY(extent, in.integer(d < rank ? 0 : 1, d < rank ? kMaxBytes : 1));
    // Extents of 0 do not count, so that the claim of the file is bounded even with one of them.
    if (extent > 1 && extent > kMaxBytes / bytes) return wrong("extents beyond 2^62 bytes");
    bytes *= extent > 1 ? extent : 1;
  }
  return spec;
}

void write_message(MessageWriter& out, OwnedTensor tensor) {
  write_message(out, tensor.spec());
  out.give_bytes(tensor.data(), static_cast<std::size_t>(tensor.size_bytes()));
}

Result<OwnedTensor> read_tensor_message(MessageReader& in) {
  FDMA_TRY(const TensorSpec spec, read_spec_message(in));
  const auto bytes = static_cast<std::uint64_t>(spec.num_elements() * size_bytes(spec.dtype));
  FDMA_TRY(const std::uint64_t announced, in.bytes_to_come());
  if (announced != bytes) return wrong("a tensor of other bytes than its extents need");
  FDMA_TRY(OwnedTensor tensor, OwnedTensor::zeros(spec));
  if (bytes > 0) FDMA_TRY_VOID(in.bytes(tensor.data(), static_cast<std::size_t>(bytes)));
  return tensor;
}

void write_message(MessageWriter& out, bool value) { out.flag(value); }

Result<bool> read_flag_message(MessageReader& in) { return in.flag(); }

}  // namespace fdma::io
