#include "backend/part_arrays.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "call/dropout_bits.hpp"
#include "suite_mask.hpp"

namespace fdma::testing {
namespace {

constexpr std::int64_t kPartCanaryBytes = 1024;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// About normal.
double random_number(suite::Random& random) {
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(random.below(256));
  return (sum - 510) / 147.8;
}

std::int64_t heads_of(const AttentionShape& shape, PartChoice::Heads heads) {
  return heads == PartChoice::Heads::each     ? shape.heads_q
         : heads == PartChoice::Heads::groups ? shape.heads_kv
                                              : 1;
}

}  // namespace

ScoreSpec PartChoice::add_to(ScoreSpec score) const {
  score.bias = has_bias;
  score.alibi = has_slopes;
  score.relative_table = has_relative;
  score.sink = has_sinks;
  score.dropout = dropout_rate > 0;
  return score;
}

std::string PartChoice::text() const {
  std::string text;
  if (has_bias) {
    constexpr const char* kHeads[] = {"heads", "groups", "1"};
    text += fmt::format(" bias [{}, {}, {}, kv]{} x {}", is_bias_per_element ? "batch" : "1",
                        kHeads[static_cast<std::size_t>(bias_heads)], is_bias_per_row ? "q" : "1",
                        is_bias_16 ? " 16" : "", bias_scale);
  }
  if (has_slopes) text += are_slopes_per_element ? " slopes [batch, heads]" : " slopes [heads]";
  if (has_relative) {
    text += fmt::format(" relative [{}, {} + 1 + {}]", is_relative_per_head ? "heads" : "1", left,
                        right);
  }
  if (has_sinks) {
    text += are_sinks_per_row ? " sinks [batch, heads, q]" : " sinks [heads]";
    if (are_sinks_16) text += " 16";
  }
  if (dropout_rate > 0) {
    text += fmt::format(" dropout {}{}", dropout_rate, is_seed_in_memory ? " in memory" : "");
  }
  return text;
}

PartChoice part_choice(int index) {
  using Heads = PartChoice::Heads;
  PartChoice choice;
  const auto bias = [&](Heads heads, bool is_16, bool per_element, bool per_row) {
    choice.has_bias = true;
    choice.bias_heads = heads;
    choice.is_bias_16 = is_16;
    choice.is_bias_per_element = per_element;
    choice.is_bias_per_row = per_row;
  };
  const auto slopes = [&](bool per_element) {
    choice.has_slopes = true;
    choice.are_slopes_per_element = per_element;
  };
  const auto relative = [&](bool per_head, std::int64_t left, std::int64_t right) {
    choice.has_relative = true;
    choice.is_relative_per_head = per_head;
    choice.left = left;
    choice.right = right;
  };
  const auto sinks = [&](bool is_16, bool per_row) {
    choice.has_sinks = true;
    choice.are_sinks_16 = is_16;
    choice.are_sinks_per_row = per_row;
  };
  const auto dropout = [&](double rate, bool in_memory) {
    choice.dropout_rate = rate;
    choice.is_seed_in_memory = in_memory;
  };
  switch (index) {
    case 0:
      sinks(false, false);
      break;
    case 1:
      sinks(true, true);
      break;
    case 2:
      slopes(false);
      break;
    case 3:
      slopes(true);
      break;
    case 4:
      relative(true, 20, 7);
      break;
    case 5:
      relative(false, 3, 150);
      break;
    case 6:
      bias(Heads::each, true, true, true);
      break;
    case 7:
      bias(Heads::one, false, false, true);
      break;
    case 8:
      bias(Heads::groups, true, true, false);
      break;
    case 9:
      dropout(0.2, false);
      break;
    case 10:
      sinks(true, false), slopes(false);
      break;
    case 11:
      sinks(false, true), relative(false, 3, 3);
      break;
    case 12:
      sinks(true, false), bias(Heads::groups, false, false, true);
      break;
    case 13:
      sinks(false, false), dropout(0.5, true);
      break;
    case 14:
      slopes(true), relative(true, 200, 0);
      break;
    case 15:
      slopes(false), bias(Heads::one, true, true, false);
      break;
    case 16:
      slopes(false), dropout(0.1, false);
      break;
    case 17:
      relative(true, 15, 15), bias(Heads::each, false, false, false);
      break;
    case 18:
      relative(false, 30, 1), dropout(0.3, false), bias(Heads::one, true, false, true);
      break;
    default:
      bias(Heads::each, true, true, true), slopes(false), relative(true, 9, 40);
      sinks(true, true), dropout(0.25, true);
      break;
  }
  return choice;
}

// ---- a tensor

PartTensor::PartTensor(BackendFixture& fixture, DType dtype,
                       const std::vector<std::int64_t>& extents, std::int64_t gap)
    : fixture_(fixture), dtype_(dtype), extents_(extents), row_stride_(extents.back() + gap) {
  const std::int64_t rows = num_elements() / extents_.back();
  image_.assign(
      static_cast<std::size_t>(rows * row_stride_ * size_bytes(dtype_) + 2 * kPartCanaryBytes),
      0xff);
  memory_ = fixture_.allocate(static_cast<std::int64_t>(image_.size()));
  upload();
}

std::int64_t PartTensor::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : extents_) count *= extent;
  return count;
}

std::int64_t PartTensor::offset(std::int64_t index) const {
  return index / extents_.back() * row_stride_ + index % extents_.back();
}

MutableTensorView PartTensor::view() const {
  MutableTensorView view;
  view.data = memory_ + kPartCanaryBytes;
  view.dtype = dtype_;
  view.device = fixture_.device();
  view.rank = static_cast<int>(extents_.size());
  std::int64_t stride = row_stride_;
  for (std::size_t axis = extents_.size(); axis-- > 0;) {
    view.extents[axis] = extents_[axis];
    const bool is_last = axis + 1 == extents_.size();
    view.strides[axis] = is_last ? 1 : stride;
    if (!is_last) stride *= extents_[axis];
  }
  return view;
}

double PartTensor::get(std::int64_t index) const {
  return reference::decode(image_.data() + kPartCanaryBytes, dtype_, offset(index));
}

void PartTensor::set(std::int64_t index, double value) {
  reference::encode(image_.data() + kPartCanaryBytes, dtype_, offset(index), value);
}

void PartTensor::poison(unsigned char byte) {
  std::fill(image_.begin(), image_.end(), byte);
  upload();
}

void PartTensor::upload() {
  uploaded_ = image_;
  fixture_.write(memory_, image_.data(), static_cast<std::int64_t>(image_.size()));
}

void PartTensor::fetch() {
  fixture_.read(image_.data(), memory_, static_cast<std::int64_t>(image_.size()));
}

std::string PartTensor::stray_writes(bool is_output) const {
  std::vector<unsigned char> beside = image_;
  const std::int64_t row_bytes = extents_.back() * size_bytes(dtype_);
  for (std::int64_t row = 0; is_output && row < num_elements() / extents_.back(); ++row) {
    const std::int64_t at = kPartCanaryBytes + row * row_stride_ * size_bytes(dtype_);
    std::copy_n(uploaded_.begin() + at, row_bytes, beside.begin() + at);
  }
  if (beside == uploaded_) return {};
  const auto differing = std::mismatch(beside.begin(), beside.end(), uploaded_.begin()).first;
  return fmt::format("byte {} was written", differing - beside.begin() - kPartCanaryBytes);
}

std::vector<unsigned char> PartTensor::bytes() const {
  std::vector<unsigned char> result;
  const std::int64_t row_bytes = extents_.back() * size_bytes(dtype_);
  for (std::int64_t row = 0; row < num_elements() / extents_.back(); ++row) {
    const auto at = image_.begin() + kPartCanaryBytes + row * row_stride_ * size_bytes(dtype_);
    result.insert(result.end(), at, at + row_bytes);
  }
  return result;
}

// ---- the arrays of a case

PartArrays::PartArrays(BackendFixture& fixture, const MaskCase& mask, const AttentionShape& shape,
                       const PartChoice& choice, std::uint64_t seed)
    : shape_(shape), choice_(choice), seed_(seed) {
  suite::Random random(seed * 8 + 5);
  const DType own = shape.q_dtype;
  const auto make = [&](DType dtype, const std::vector<std::int64_t>& extents, std::int64_t gap) {
    return std::make_unique<PartTensor>(fixture, dtype, extents, gap);
  };
  if (choice.has_bias) {
    const std::vector<std::int64_t> extents{
        choice.is_bias_per_element ? shape.batch : 1, heads_of(shape, choice.bias_heads),
        choice.is_bias_per_row ? shape.max_q_len() + (seed % 2 == 0 ? 3 : 0) : 1,
        shape.max_kv_len() + (seed % 3 == 0 ? 5 : 0)};
    const DType dtype = choice.is_bias_16 ? own : DType::float32;
    const std::int64_t gap = seed % 4 == 1 ? 3 : 0;
    bias_ = make(dtype, extents, gap);
    dbias_ = make(dtype, extents, gap);
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.heads_q; ++h) {
        const Cells& cells = mask.at(b, h);
        for (std::int64_t q = 0; q < cells.q_len; ++q) {
          for (std::int64_t k = 0; k < cells.kv_len; ++k) {
            if (cells.get(q, k) == 0) continue;
            const std::int64_t at = bias_index(b, h, q, k);
            if (!std::isnan(bias_->get(at))) continue;
            const bool is_hidden =
                random.below(20) == 0 || (choice.hides_row && choice.is_bias_per_row && q == 3);
            const double value = random_number(random) * choice.bias_scale;
            bias_->set(at, is_hidden ? choice.hidden : value);
          }
        }
      }
    }
    bias_->upload();
  }
  if (choice.has_slopes) {
    std::vector<std::int64_t> extents{shape.heads_q};
    if (choice.are_slopes_per_element) extents.insert(extents.begin(), shape.batch);
    slopes_ = make(DType::float32, extents, 0);
    for (std::int64_t i = 0; i < slopes_->num_elements(); ++i) {
      slopes_->set(i, 0.03 * static_cast<double>(i % 7));
    }
    slopes_->upload();
  }
  if (choice.has_relative) {
    const std::vector<std::int64_t> extents{choice.is_relative_per_head ? shape.heads_q : 1,
                                            choice.left + 1 + choice.right};
    relative_ = make(DType::float32, extents, seed % 2 == 0 ? 2 : 0);
    drelative_ = make(DType::float32, extents, seed % 2 == 0 ? 2 : 0);
    for (std::int64_t i = 0; i < relative_->num_elements(); ++i) {
      relative_->set(i, random_number(random));
    }
    relative_->upload();
  }
  if (choice.has_sinks) {
    std::vector<std::int64_t> extents{shape.heads_q};
    if (choice.are_sinks_per_row) extents = {shape.batch, shape.heads_q, shape.max_q_len()};
    const DType dtype = choice.are_sinks_16 ? own : DType::float32;
    sinks_ = make(dtype, extents, 0);
    dsinks_ = make(dtype, extents, 0);
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.heads_q; ++h) {
        for (std::int64_t q = 0; q < shape.q_len(b); ++q) {
          const std::int64_t at = sink_index(b, h, q);
          if (!std::isnan(sinks_->get(at))) continue;
          const std::int64_t number = choice.are_sinks_per_row ? q : h + 5;
          const double value = random_number(random) + 2;
          sinks_->set(at, number % 6 == 5 ? kMinusInfinity : number % 11 == 7 ? 300 : value);
        }
      }
    }
    sinks_->upload();
  }
  if (choice.is_seed_in_memory) {
    seed_memory_ = std::make_unique<FixtureArray<std::uint64_t>>(
        fixture, std::vector<std::uint64_t>{seed_ * 77777, 4 * seed_});
  }
}

std::int64_t PartArrays::bias_index(std::int64_t b, std::int64_t h, std::int64_t q,
                                    std::int64_t k) const {
  const std::vector<std::int64_t>& extents = bias_->extents();
  const std::int64_t head = choice_.bias_heads == PartChoice::Heads::each ? h
                            : choice_.bias_heads == PartChoice::Heads::groups
                                ? h / shape_.group_size()
                                : 0;
  const std::int64_t first = ((choice_.is_bias_per_element ? b : 0) * extents[1] + head);
  return (first * extents[2] + (choice_.is_bias_per_row ? q : 0)) * extents[3] + k;
}

std::int64_t PartArrays::sink_index(std::int64_t b, std::int64_t h, std::int64_t q) const {
  if (!choice_.are_sinks_per_row) return h;
  return (b * shape_.heads_q + h) * shape_.max_q_len() + q;
}

std::int64_t PartArrays::relative_index(std::int64_t h, std::int64_t i) const {
  return (choice_.is_relative_per_head ? h * relative_->extents()[1] : 0) + i;
}

Dropout PartArrays::dropout() const {
  Dropout dropout;
  dropout.rate = choice_.dropout_rate;
  if (dropout.rate == 0) return dropout;
  dropout.seed = seed_ * 77777;
  dropout.offset = 4 * seed_;
  if (seed_memory_ == nullptr) return dropout;
  const auto* const numbers = static_cast<const std::uint64_t*>(seed_memory_->data());
  dropout.seed_at = numbers;
  dropout.offset_at = numbers + 1;
  dropout.seed = dropout.offset = 1;  // not read
  return dropout;
}

void PartArrays::add_to(AttentionTensors& tensors) const {
  if (bias_) tensors.bias = bias_->view().view();
  if (slopes_) tensors.alibi_slopes = slopes_->view().view();
  if (relative_) tensors.relative = relative_->view().view();
  if (sinks_) tensors.sinks = sinks_->view().view();
}

void PartArrays::add_to(BackwardTensors& tensors, bool wants_gradients) const {
  if (bias_) tensors.bias = bias_->view().view();
  if (slopes_) tensors.alibi_slopes = slopes_->view().view();
  if (relative_) tensors.relative = relative_->view().view();
  if (sinks_) tensors.sinks = sinks_->view().view();
  if (!wants_gradients) return;
  if (bias_) tensors.dbias = dbias_->view();
  if (relative_) tensors.drelative = drelative_->view();
  if (sinks_) tensors.dsinks = dsinks_->view();
}

void PartArrays::add_to(reference::HeadProblem& head, std::int64_t b, std::int64_t h,
                        const std::vector<std::int32_t>& rows) const {
  DropoutBits bits;
  if (choice_.dropout_rate > 0) {
    bits = dropout_bits({choice_.dropout_rate, seed_ * 77777, 4 * seed_});
    head.dropout_rate = choice_.dropout_rate;
  }
  const auto bits_head = static_cast<std::uint32_t>(b * shape_.heads_q + h);
  for (const std::int32_t q : rows) {
    head.positions.push_back(q + shape_.kv_len(b) - shape_.q_len(b));
    for (std::int64_t k = 0; k < shape_.kv_len(b); ++k) {
      if (bias_) head.pair_bias.push_back(bias_->get(bias_index(b, h, q, k)));
      if (choice_.dropout_rate > 0) head.kept.push_back(bits.keeps(bits_head, q, k) ? 1 : 0);
    }
    if (sinks_) head.sinks.push_back(sinks_->get(sink_index(b, h, q)));
  }
  if (slopes_) {
    head.alibi_slope = slopes_->get(choice_.are_slopes_per_element ? b * shape_.heads_q + h : h);
  }
  if (!relative_) return;
  head.relative_left = choice_.left;
  for (std::int64_t i = 0; i < relative_->extents()[1]; ++i) {
    head.relative.push_back(relative_->get(relative_index(h, i)));
  }
}

void PartArrays::poison(unsigned char byte) {
  for (const auto* tensor : {&dbias_, &drelative_, &dsinks_}) {
    if (*tensor) (*tensor)->poison(byte);
  }
}

void PartArrays::fetch() {
  for (const auto* tensor :
       {&bias_, &slopes_, &relative_, &sinks_, &dbias_, &drelative_, &dsinks_}) {
    if (*tensor) (*tensor)->fetch();
  }
}

std::string PartArrays::stray_writes() const {
  const auto check = [](const auto& tensor, const char* name, bool is_output) -> std::string {
    if (!tensor) return {};
    const std::string stray = tensor->stray_writes(is_output);
    return stray.empty() ? "" : fmt::format("{}: {}", name, stray);
  };
  return check(bias_, "bias", false) + check(slopes_, "alibi_slopes", false) +
         check(relative_, "relative", false) + check(sinks_, "sinks", false) +
         check(dbias_, "dbias", true) + check(drelative_, "drelative", true) +
         check(dsinks_, "dsinks", true);
}

std::vector<unsigned char> PartArrays::gradient_bytes() const {
  std::vector<unsigned char> bytes;
  for (const auto* tensor : {&dbias_, &drelative_, &dsinks_}) {
    if (!*tensor) continue;
    const std::vector<unsigned char> each = (*tensor)->bytes();
    bytes.insert(bytes.end(), each.begin(), each.end());
  }
  return bytes;
}

// ---- gradients

PartArrays::Expected::Expected(const PartArrays& arrays) : arrays_(arrays) {
  const auto resize = [](Sums& sums, const std::unique_ptr<PartTensor>& tensor) {
    if (!tensor) return;
    const auto size = static_cast<std::size_t>(tensor->num_elements());
    sums.exact.resize(size);
    sums.in_own_type.resize(size);
    sums.is_live.resize(size);
  };
  resize(bias_, arrays.bias_);
  resize(relative_, arrays.relative_);
  resize(sinks_, arrays.sinks_);
}

void PartArrays::Expected::add(std::int64_t b, std::int64_t h, const Cells& cells,
                               const reference::HeadGradients& exact,
                               const reference::HeadGradients& in_own_type) {
  const auto add = [](Sums& sums, std::int64_t at, double of_exact, double of_own) {
    const auto index = static_cast<std::size_t>(at);
    sums.exact[index] += of_exact;
    sums.in_own_type[index] += of_own;
    sums.is_live[index] = 1;
  };
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    bool sees_any = false;
    for (std::int64_t k = 0; k < cells.kv_len; ++k) {
      if (cells.get(q, k) == 0) continue;
      sees_any = true;
      const auto cell = static_cast<std::size_t>(q * cells.kv_len + k);
      if (arrays_.bias_) {
        add(bias_, arrays_.bias_index(b, h, q, k), exact.dpair_bias[cell],
            in_own_type.dpair_bias[cell]);
      }
      if (arrays_.relative_) {
        const std::int64_t distance = k - (q + cells.kv_len - cells.q_len);
        const PartChoice& choice = arrays_.choice_;
        const std::int64_t index = std::clamp(distance, -choice.left, choice.right) + choice.left;
        add(relative_, arrays_.relative_index(h, index), 0, 0);
      }
    }
    const auto row = static_cast<std::size_t>(q);
    if (arrays_.sinks_ && sees_any) {
      add(sinks_, arrays_.sink_index(b, h, q), exact.dsinks[row], in_own_type.dsinks[row]);
    }
  }
  for (std::size_t i = 0; i < exact.drelative.size(); ++i) {
    const auto at =
        static_cast<std::size_t>(arrays_.relative_index(h, static_cast<std::int64_t>(i)));
    relative_.exact[at] += exact.drelative[i];
    relative_.in_own_type[at] += in_own_type.drelative[i];
  }
}

std::string PartArrays::Expected::compare() const {
  const auto compare = [](const std::unique_ptr<PartTensor>& got, const Sums& sums,
                          const char* name) -> std::string {
    if (!got) return {};
    TensorError error;
    for (std::size_t i = 0; i < sums.exact.size(); ++i) {
      const double value = got->get(static_cast<std::int64_t>(i));
      if (sums.is_live[i] == 0 && value != 0) {
        return fmt::format("{}: {} at element {}, which nothing sees", name, value, i);
      }
      error.add(value, sums.exact[i], reference::rounded(sums.in_own_type[i], got->dtype()),
                {0, 0, static_cast<std::int64_t>(i)});
    }
    return bound_error(name, error);
  };
  std::string wrong = compare(arrays_.dbias_, bias_, "dbias");
  if (wrong.empty()) wrong = compare(arrays_.drelative_, relative_, "drelative");
  if (wrong.empty()) wrong = compare(arrays_.dsinks_, sinks_, "dsinks");
  return wrong;
}

}  // namespace fdma::testing
