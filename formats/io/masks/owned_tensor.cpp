#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "fdma/base/memory.hpp"
#include "fdma/io/tensor_dataset.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

std::int64_t TensorSpec::num_elements() const {
  std::int64_t count = 1;
  for (int d = 0; d < rank; ++d) count *= extents[static_cast<std::size_t>(d)];
  return count;
}

std::string to_string(const TensorSpec& spec) {
  return fmt::format("{} [{}]", to_string(spec.dtype),
                     fmt::join(spec.extents.begin(), spec.extents.begin() + spec.rank, ", "));
}

void OwnedTensor::Free::operator()(void* data) const noexcept { std::free(data); }

Result<OwnedTensor> OwnedTensor::zeros(const TensorSpec& spec) {
  if (spec.rank < 0 || spec.rank > kMaxRank) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rank: expected 0 to {}, got {}", kMaxRank, spec.rank)};
  }
  bool is_empty = false;
  for (int d = 0; d < spec.rank; ++d) {
    const std::int64_t extent = spec.extents[static_cast<std::size_t>(d)];
    if (extent < 0) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("extents[{}]: expected 0 or more, got {}", d, extent)};
    }
    is_empty = is_empty || extent == 0;
  }
  OwnedTensor tensor;
  tensor.spec_ = spec;
  if (is_empty) return tensor;
  const auto too_large = [&] {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("out of memory: a tensor {} does not fit", to_string(spec))};
  };
  constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max() / 2;
  std::int64_t bytes = fdma::size_bytes(spec.dtype);
  for (int d = 0; d < spec.rank; ++d) {
    const std::int64_t extent = spec.extents[static_cast<std::size_t>(d)];
    if (extent > kMaxBytes / bytes) return too_large();
    bytes *= extent;
  }
  FDMA_TRY_VOID(check_memory(bytes, to_string(spec)));
  const std::int64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  tensor.data_.reset(std::aligned_alloc(kAlignment, static_cast<std::size_t>(padded)));
  if (tensor.data_ == nullptr) return too_large();
  std::memset(tensor.data_.get(), 0, static_cast<std::size_t>(bytes));
  return tensor;
}

TensorView OwnedTensor::view() const {
  return make_contiguous_view(data_.get(), spec_.dtype, spec_.rank, spec_.extents.data());
}

MutableTensorView OwnedTensor::mutable_view() {
  return make_contiguous_mutable_view(data_.get(), spec_.dtype, spec_.rank, spec_.extents.data());
}

}  // namespace fdma
