#include "backend/test_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention_reference.hpp"
#include "suite_mask.hpp"

namespace fdma::testing {

TestTensor::TestTensor(DType dtype, std::int64_t batch, std::vector<std::int64_t> lengths,
                       std::int64_t heads, std::int64_t dim, Order order, GuardSide side)
    : dtype_(dtype),
      batch_(batch),
      lengths_(std::move(lengths)),
      max_len_(*std::max_element(lengths_.begin(), lengths_.end())),
      heads_(heads),
      dim_(dim == 0 ? 1 : dim),
      is_rank3_(dim == 0) {
  // A tensor of rank 3 has the length as its last dimension, with stride 1.
  const std::int64_t row = is_rank3_ ? 1 : dim_ + (order == Order::gaps ? 3 : 0);
  if (is_rank3_ || order == Order::head_major) {
    const std::int64_t gap = is_rank3_ && order == Order::gaps ? 5 : 0;
    strides_ = {heads_ * (max_len_ * row + gap), row, max_len_ * row + gap};
  } else {
    strides_ = {max_len_ * heads_ * row, heads_ * row, row};
  }
  if (order == Order::reversed) {
    base_ = (heads_ - 1) * strides_[2];
    strides_[2] = -strides_[2];
  }
  std::int64_t num_elements = 0;
  for_each([&](std::int64_t at) { num_elements = std::max(num_elements, at + 1); });
  buffer_ = std::make_unique<GuardedBuffer>(num_elements * size_bytes(dtype_), side);
  fill(0xff);
}

MutableTensorView TestTensor::mutable_view() const {
  MutableTensorView view;
  view.data = buffer_->data() + base_ * size_bytes(dtype_);
  view.dtype = dtype_;
  if (is_rank3_) {
    view.rank = 3;
    view.extents = {batch_, heads_, max_len_, 1};
    view.strides = {strides_[0], strides_[2], strides_[1], 0};
  } else {
    view.rank = 4;
    view.extents = {batch_, max_len_, heads_, dim_};
    view.strides = {strides_[0], strides_[1], strides_[2], 1};
  }
  return view;
}

double TestTensor::get(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
  return reference::decode(buffer_->data(), dtype_, offset(b, i, h, d));
}

void TestTensor::set(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d, double value) {
  reference::encode(buffer_->data(), dtype_, offset(b, i, h, d), value);
}

void TestTensor::randomize(std::uint64_t seed, double scale) {
  suite::Random random(seed);
  for_each([&](std::int64_t at) {
    // Four uniform numbers of variance 1/12 each are scaled to variance 1.
    double sum = -2;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(random.next() >> 11) * 0x1p-53;
    reference::encode(buffer_->data(), dtype_, at, sum * 1.7320508 * scale);
  });
}

std::vector<double> TestTensor::head(std::int64_t b, std::int64_t h) const {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(length(b) * dim_));
  for (std::int64_t i = 0; i < length(b); ++i) {
    for (std::int64_t d = 0; d < dim_; ++d) values.push_back(get(b, i, h, d));
  }
  return values;
}

std::vector<unsigned char> TestTensor::bytes() const {
  std::vector<unsigned char> result;
  for_each([&](std::int64_t at) {
    const unsigned char* first = buffer_->data() + at * size_bytes(dtype_);
    result.insert(result.end(), first, first + size_bytes(dtype_));
  });
  return result;
}

std::string TestTensor::stray_writes(unsigned char poison) const {
  if (!buffer_->has_canaries()) return "bytes beside the storage were written";
  std::vector<bool> is_valid(static_cast<std::size_t>(buffer_->num_bytes() / size_bytes(dtype_)),
                             false);
  for_each([&](std::int64_t at) { is_valid[static_cast<std::size_t>(at)] = true; });
  for (std::int64_t i = 0; i < buffer_->num_bytes(); ++i) {
    if (is_valid[static_cast<std::size_t>(i / size_bytes(dtype_))]) continue;
    if (buffer_->data()[i] != poison) return fmt::format("byte {} was written", i);
  }
  return {};
}

void TestTensor::for_each(const std::function<void(std::int64_t offset)>& visit) const {
  for (std::int64_t b = 0; b < batch_; ++b)
    for (std::int64_t i = 0; i < length(b); ++i)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t d = 0; d < dim_; ++d) visit(offset(b, i, h, d));
}

}  // namespace fdma::testing
