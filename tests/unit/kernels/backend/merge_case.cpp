#include "backend/merge_case.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <random>

#include "attention_reference.hpp"

namespace fdma::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kHeadDim = 8;

/// The largest relative error of rounding to nearest.
double rounding_error(DType dtype) {
  return dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 0x1p-24;
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The part that a row sees a key in; -1: it does not see the key.
int part_of(std::int64_t q, int num_parts, std::mt19937_64& random) {
  const int part = std::uniform_int_distribution<int>(-1, num_parts - 1)(random);
  if (q % 7 == 3) return -1;
  if (q % 7 == 5) return part == 0 ? 0 : -1;
  return q % 2 == 0 && part == num_parts - 1 && num_parts > 1 ? -1 : part;
}

}  // namespace

std::string to_string(const MergeProblem& problem) {
  return fmt::format("{} {} parts {} x {} x {} x {} layout {} sinks {}{}",
                     fdma::to_string(problem.dtype), problem.num_parts, problem.batch,
                     problem.q_len, problem.heads, problem.head_dim_v,
                     static_cast<int>(problem.layout), static_cast<int>(problem.sinks),
                     problem.wants_lse ? "" : " no lse");
}

MergeCase::MergeCase(BackendFixture& fixture, const MergeProblem& problem, std::uint64_t seed)
    : fixture_(fixture), p_(problem) {
  const auto make = [&](DType dtype, std::int64_t dim, bool is_output) {
    return std::make_unique<BackendTensor>(fixture_, dtype, p_.batch,
                                           std::vector<std::int64_t>{p_.q_len}, p_.heads, dim,
                                           p_.layout, is_output);
  };
  for (int i = 0; i < p_.num_parts; ++i) {
    parts_.push_back({make(p_.dtype, p_.head_dim_v, false), make(DType::float32, 0, false)});
  }
  out_ = make(p_.dtype, p_.head_dim_v, true);
  lse_ = make(DType::float32, 0, true);
  sinks_ = make(DType::float32, 0, false);
  whole_out_.assign(row_index(p_.batch, 0, 0) * at(p_.head_dim_v), 0);
  whole_lse_.assign(row_index(p_.batch, 0, 0), 0);
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      make_head(b, h, seed + at(b * p_.heads + h) * 1000);
      for (std::int64_t q = 0; q < p_.q_len; ++q) {
        const bool is_none = p_.sinks == Sinks::per_row ? q % 5 == 2 : h % 3 == 2;
        const auto row = static_cast<double>(p_.sinks == Sinks::per_row ? q : 0);
        sinks_->set(b, q, h, 0, is_none ? -kInfinity : 4 * std::sin(static_cast<double>(h) + row));
      }
    }
  }
  for (Part& part : parts_) {
    part.out->upload();
    part.lse->upload();
    views_.push_back({cropped(part.out->view().view()), part.lse->view().view()});
  }
  sinks_->upload();
  out_->poison(0x3c);
  lse_->poison(0x3c);
}

MergeCase::~MergeCase() = default;

void MergeCase::make_head(std::int64_t b, std::int64_t h, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  reference::HeadProblem head{p_.q_len, p_.kv_len, kHeadDim, p_.head_dim_v, {}, {}, {}, {}, 2, {}};
  const auto fill = [&](std::vector<double>& values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) values.push_back(normal(random));
  };
  fill(head.q, p_.q_len * kHeadDim);
  fill(head.k, p_.kv_len * kHeadDim);
  fill(head.v, p_.kv_len * p_.head_dim_v);
  std::vector<std::vector<char>> cells(at(p_.num_parts),
                                       std::vector<char>(at(p_.q_len * p_.kv_len)));
  std::vector<char> all(at(p_.q_len * p_.kv_len));
  for (std::int64_t q = 0; q < p_.q_len; ++q) {
    for (std::int64_t k = 0; k < p_.kv_len; ++k) {
      const int part = part_of(q, p_.num_parts, random);
      if (part < 0) continue;
      cells[at(part)][at(q * p_.kv_len + k)] = all[at(q * p_.kv_len + k)] = 1;
    }
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    head.cells = cells[i].data();
    const reference::HeadResult result = reference::attention_float64(head);
    for (std::int64_t q = 0; q < p_.q_len; ++q) {
      const double lse = result.lse[at(q)];
      parts_[i].lse->set(b, q, h, 0, lse);
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
        const double value = result.out[at(q * p_.head_dim_v + d)];
        parts_[i].out->set(b, q, h, d, lse == -kInfinity ? std::nan("") : value);
      }
    }
  }
  head.cells = all.data();
  const reference::HeadResult whole = reference::attention_float64(head);
  for (std::int64_t q = 0; q < p_.q_len; ++q) {
    whole_lse_[row_index(b, q, h)] = whole.lse[at(q)];
    for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
      whole_out_[row_index(b, q, h) * at(p_.head_dim_v) + at(d)] =
          whole.out[at(q * p_.head_dim_v + d)];
    }
  }
}

// Without the rows of a padded tensor that no element has.
TensorView MergeCase::cropped(TensorView view) const {
  view.extents[1] = p_.q_len;
  return view;
}

MergeTensors MergeCase::tensors() const {
  MergeTensors tensors;
  tensors.parts = views_;
  tensors.out = out_->view();
  tensors.out.extents[1] = p_.q_len;
  if (p_.wants_lse) tensors.lse = lse_->view();
  if (p_.sinks == Sinks::none) return tensors;
  tensors.sinks = sinks_->view().view();
  if (p_.sinks == Sinks::per_head) {
    tensors.sinks.rank = 1;
    tensors.sinks.extents = {p_.heads, 1, 1, 1};
    tensors.sinks.strides = {sinks_->view().strides[1], 0, 0, 0};
  }
  return tensors;
}

double MergeCase::sink_at(std::int64_t b, std::int64_t q, std::int64_t h) const {
  if (p_.sinks == Sinks::none) return -kInfinity;
  return p_.sinks == Sinks::per_head ? sinks_->get(0, 0, h) : sinks_->get(b, q, h);
}

void MergeCase::set_lse(int part, std::int64_t b, std::int64_t q, std::int64_t h, double value) {
  parts_[at(part)].lse->set(b, q, h, 0, value);
  parts_[at(part)].lse->upload();
}

double MergeCase::out_at(std::int64_t b, std::int64_t q, std::int64_t h, std::int64_t d) const {
  return out_->get(b, q, h, d);
}

double MergeCase::lse_at(std::int64_t b, std::int64_t q, std::int64_t h) const {
  return lse_->get(b, q, h);
}

void MergeCase::fetch() {
  out_->fetch();
  lse_->fetch();
}

std::vector<unsigned char> MergeCase::result_bytes() {
  fetch();
  std::vector<unsigned char> bytes = out_->bytes();
  const std::vector<unsigned char> more = lse_->bytes();
  bytes.insert(bytes.end(), more.begin(), more.end());
  return bytes;
}

std::string MergeCase::check() {
  fetch();
  if (std::string stray = out_->stray_writes(); !stray.empty()) return "out: " + stray;
  if (std::string stray = lse_->stray_writes(); !stray.empty()) return "lse: " + stray;
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      for (std::int64_t q = 0; q < p_.q_len; ++q) {
        const std::string error = check_row(b, q, h);
        if (!error.empty()) return fmt::format("batch {} head {} row {}: {}", b, h, q, error);
      }
    }
  }
  return {};
}

std::string MergeCase::check_row(std::int64_t b, std::int64_t q, std::int64_t h) const {
  double largest = -kInfinity, sum = 0;
  for (const Part& part : parts_) largest = std::max(largest, part.lse->get(b, q, h));
  for (const Part& part : parts_) {
    const double lse = part.lse->get(b, q, h);
    if (lse != -kInfinity) sum += std::exp(lse - largest);
  }
  const double lse = sum == 0 ? -kInfinity : largest + std::log(sum);
  const double whole_lse = whole_lse_[row_index(b, q, h)];
  if (p_.wants_lse) {
    const double got = lse_at(b, q, h);
    if (sum == 0 ? got != lse : !(std::fabs(got - lse) <= 2e-6 * std::max(1.0, std::fabs(lse)))) {
      return fmt::format("lse {}, expected {}", got, lse);
    }
    if (sum == 0 ? got != whole_lse
                 : !(std::fabs(got - whole_lse) <= 4e-6 * std::max(1.0, std::fabs(lse)))) {
      return fmt::format("lse {}, attention over all keys has {}", got, whole_lse);
    }
  }
  const double kept = sum == 0 ? 0 : 1 / (1 + std::exp(sink_at(b, q, h) - lse));
  const double epsilon = rounding_error(p_.dtype);
  for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
    double exact = 0, magnitude = 0;
    for (const Part& part : parts_) {
      const double part_lse = part.lse->get(b, q, h);
      if (part_lse == -kInfinity) continue;
      const double term = std::exp(part_lse - lse) * part.out->get(b, q, h, d) * kept;
      exact += term;
      magnitude += std::fabs(term);
    }
    const double got = out_at(b, q, h, d);
    const double tiny = p_.dtype == DType::float16 ? 0x1p-25 : 0;
    if (!(std::fabs(got - exact) <= epsilon * std::fabs(exact) + 2e-6 * magnitude + tiny)) {
      return fmt::format("out {}, expected {}", got, exact);
    }
    const double whole = whole_out_[row_index(b, q, h) * at(p_.head_dim_v) + at(d)] * kept;
    if (!(std::fabs(got - whole) <= (2 * epsilon + 4e-6) * (magnitude + std::fabs(whole)) + tiny)) {
      return fmt::format("out {}, attention over all keys has {}", got, whole);
    }
  }
  return {};
}

std::vector<MergeProblem> merge_problems() {
  std::vector<MergeProblem> problems;
  constexpr std::int64_t kHeadDims[] = {64, 128, 8, 5, 300, 1, 512};
  constexpr int kParts[] = {2, 1, 3, 4, 5, 8, 9, kMaxMergeParts};
  std::size_t i = 0;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const Layout layout : {Layout::rows, Layout::head_major, Layout::padded}) {
      for (const std::int64_t head_dim_v : kHeadDims) {
        MergeProblem problem;
        problem.dtype = dtype;
        problem.layout = layout;
        problem.head_dim_v = head_dim_v;
        problem.num_parts = kParts[i % std::size(kParts)];
        problem.kv_len = 30 + 5 * problem.num_parts;
        problem.sinks = i % 3 == 0 ? Sinks::none : i % 3 == 1 ? Sinks::per_head : Sinks::per_row;
        problem.wants_lse = i % 5 != 4;
        problems.push_back(problem);
        ++i;
      }
    }
  }
  return problems;
}

}  // namespace fdma::testing
