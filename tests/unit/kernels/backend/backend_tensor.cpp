#include "backend/backend_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "attention_reference.hpp"
#include "suite_mask.hpp"

namespace fdma::testing {
namespace {

// The value of every bit pattern of a 16-bit type. Decoding elements one by one would take longer
// than attention.
const std::vector<double>& numbers_of(DType dtype) {
  static const auto make = [](DType type) {
    std::vector<double> numbers(65536);
    for (std::size_t bits = 0; bits < numbers.size(); ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      numbers[bits] = reference::decode(&pattern, type, 0);
    }
    return numbers;
  };
  static const std::vector<double> bfloats = make(DType::bfloat16), halfs = make(DType::float16);
  return dtype == DType::bfloat16 ? bfloats : halfs;
}

// A sum of four uniform bytes is about normal, and only 1021 different sums must be encoded.
constexpr int kNumSums = 4 * 255 + 1;
constexpr double kMean = 510, kDeviation = 147.8;

int sum_of_bytes(std::uint64_t bits) {
  return static_cast<int>((bits & 0xff) + (bits >> 8 & 0xff) + (bits >> 16 & 0xff) +
                          (bits >> 24 & 0xff));
}

}  // namespace

BackendTensor::BackendTensor(BackendFixture& fixture, DType dtype, std::int64_t batch,
                             std::vector<std::int64_t> lengths, std::int64_t heads,
                             std::int64_t dim, Layout layout, bool is_output)
    : fixture_(fixture),
      dtype_(dtype),
      batch_(batch),
      lengths_(std::move(lengths)),
      max_len_(*std::max_element(lengths_.begin(), lengths_.end())),
      heads_(heads),
      dim_(dim == 0 ? 1 : dim),
      is_rank3_(dim == 0),
      is_output_(is_output) {
  const bool is_padded = layout == Layout::padded;
  spare_rows_ = is_padded && !is_rank3_ ? 3 : 0;
  if (is_rank3_ && is_padded && is_output) {
    strides_ = {max_len_ * (heads_ + 1) + 5, heads_ + 1, 1};
  } else if (is_rank3_) {
    const std::int64_t head = max_len_ + (is_padded ? 3 : 0);
    strides_ = {heads_ * head + (is_padded ? 1 : 0), 1, head};
  } else if (layout == Layout::head_major) {
    strides_ = {heads_ * max_len_ * dim_, dim_, max_len_ * dim_};
  } else {
    const std::int64_t head = dim_ + (is_padded ? 8 : 0);
    const std::int64_t row = heads_ * head + (is_padded ? 24 : 0);
    strides_ = {(max_len_ + spare_rows_) * row, row, head};
  }
  const auto num_bytes =
      static_cast<std::size_t>(batch_ * strides_[0] * fdma::size_bytes(dtype_) + 2 * kCanaryBytes);
  image_.assign(num_bytes, 0xff);
  memory_ = fixture_.allocate(static_cast<std::int64_t>(num_bytes));
  upload();
}

MutableTensorView BackendTensor::view_of(unsigned char* data, Device device) const {
  MutableTensorView view;
  view.data = data;
  view.dtype = dtype_;
  view.device = device;
  if (is_rank3_) {
    view.rank = 3;
    view.extents = {batch_, heads_, max_len_, 1};
    view.strides = {strides_[0], strides_[2], strides_[1], 0};
  } else {
    view.rank = 4;
    view.extents = {batch_, max_len_ + spare_rows_, heads_, dim_};
    view.strides = {strides_[0], strides_[1], strides_[2], 1};
  }
  return view;
}

TensorView BackendTensor::host_view() const {
  const void* const data = image_.data() + kCanaryBytes;
  return view_of(nullptr, Device::cpu).with_data(data);
}

double BackendTensor::value_at(std::int64_t element) const {
  const unsigned char* data = image_.data() + kCanaryBytes;
  if (dtype_ == DType::float32) {
    float value = 0;
    std::memcpy(&value, data + element * 4, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + element * 2, sizeof bits);
  return numbers_of(dtype_)[bits];
}

void BackendTensor::set(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d,
                        double value) {
  reference::encode(image_.data() + kCanaryBytes, dtype_, offset(b, i, h) + d, value);
}

void BackendTensor::randomize(std::uint64_t seed, double scale) {
  const auto element_bytes = static_cast<std::size_t>(fdma::size_bytes(dtype_));
  std::vector<unsigned char> encoded(kNumSums * element_bytes);
  for (int i = 0; i < kNumSums; ++i)
    reference::encode(encoded.data(), dtype_, i, (i - kMean) / kDeviation * scale);
  suite::Random random(seed);
  const auto put = [&](std::int64_t element, std::uint64_t bits) {
    std::memcpy(image_.data() + kCanaryBytes + static_cast<std::size_t>(element) * element_bytes,
                encoded.data() + static_cast<std::size_t>(sum_of_bytes(bits)) * element_bytes,
                element_bytes);
  };
  for_each_row([&](std::int64_t first) {
    for (std::int64_t d = 0; d < dim_; d += 2) {
      const std::uint64_t bits = random.next();
      put(first + d, bits);
      if (d + 1 < dim_) put(first + d + 1, bits >> 32);
    }
  });
  upload();
}

void BackendTensor::poison(unsigned char byte) {
  std::fill(image_.begin(), image_.end(), byte);
  upload();
}

void BackendTensor::upload() {
  uploaded_ = image_;
  fixture_.write(memory_, image_.data(), static_cast<std::int64_t>(image_.size()));
}

void BackendTensor::fetch() {
  fixture_.read(image_.data(), memory_, static_cast<std::int64_t>(image_.size()));
}

std::string BackendTensor::stray_writes() {
  const auto element_bytes = static_cast<std::size_t>(fdma::size_bytes(dtype_));
  std::vector<unsigned char> beside = image_;
  if (is_output_) {
    for_each_row([&](std::int64_t first) {
      const std::size_t at = kCanaryBytes + static_cast<std::size_t>(first) * element_bytes;
      std::memcpy(beside.data() + at, uploaded_.data() + at,
                  static_cast<std::size_t>(dim_) * element_bytes);
    });
  }
  if (beside == uploaded_) return {};
  const auto differing = std::mismatch(beside.begin(), beside.end(), uploaded_.begin()).first;
  return fmt::format("byte {} of {} was written (strides {}, {}, {})",
                     differing - beside.begin() - kCanaryBytes,
                     static_cast<std::int64_t>(image_.size()) - 2 * kCanaryBytes, strides_[0],
                     strides_[1], strides_[2]);
}

std::vector<unsigned char> BackendTensor::bytes() const {
  const auto row_bytes = static_cast<std::size_t>(dim_ * fdma::size_bytes(dtype_));
  std::vector<unsigned char> result;
  for_each_row([&](std::int64_t first) {
    const auto at = image_.begin() + kCanaryBytes + first * fdma::size_bytes(dtype_);
    result.insert(result.end(), at, at + static_cast<std::int64_t>(row_bytes));
  });
  return result;
}

}  // namespace fdma::testing
