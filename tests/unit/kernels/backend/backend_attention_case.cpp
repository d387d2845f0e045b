#include "backend/backend_attention_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "backend/tensor_error.hpp"

namespace fdma::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

AttentionShape shape_of(const MaskCase& mask, const CaseHeads& heads, const CaseChoice& choice) {
  AttentionShape shape = shape_for(mask.mask, heads.batch, heads.heads_q, heads.heads_kv);
  shape.head_dim = choice.head_dim;
  shape.head_dim_v = choice.head_dim_v == 0 ? choice.head_dim : choice.head_dim_v;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = choice.dtype;
  return shape;
}

ScoreSpec score_of(const CaseChoice& choice) {
  return choice.parts.add_to({.softcap = choice.softcap != 0, .key_bias = choice.has_bias});
}

AttentionPlan plan_of(const MaskCase& mask, const AttentionShape& shape, const CaseChoice& choice,
                      Backend backend) {
  PlanOptions options;
  options.backend = backend;
  options.split = choice.split;
  options.pack = choice.pack;
  options.columns = choice.columns;
  options.form = choice.form;
  options.tile = choice.tile;
  auto plan = make_plan(mask.mask, shape, score_of(choice), options);
  if (!plan) throw std::runtime_error(mask.name + ": " + plan.error().message);
  return *std::move(plan);
}

// `count` rows of [0, len) to compare: the first and last rows of tiles and half tiles, then random
// ones.
std::vector<std::int32_t> sampled_rows(std::int64_t len, std::int64_t count, std::uint64_t seed) {
  std::set<std::int32_t> rows;
  const auto add = [&](std::int64_t row) {
    if (row >= 0 && row < len) rows.insert(static_cast<std::int32_t>(row));
  };
  if (count == 0 || count >= len) {
    for (std::int64_t row = 0; row < len; ++row) add(row);
    return {rows.begin(), rows.end()};
  }
  for (const std::int64_t tile : {std::int64_t{0}, len / 2 / 128, (len - 1) / 128}) {
    for (const std::int64_t edge : {0, 63, 64, 127, 128}) add(tile * 128 + edge);
  }
  add(len - 1);
  suite::Random random(seed);
  while (static_cast<std::int64_t>(rows.size()) < count) add(random.below(len));
  return {rows.begin(), rows.end()};
}

// The distance from a 16-bit value to the next larger one. Infinity has no next value, and NaN has
// no out_low.
double rounding_step(DType dtype, double value) {
  const int bits = dtype == DType::bfloat16 ? 8 : 11, least = dtype == DType::bfloat16 ? -126 : -14;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - bits + 1);
}

}  // namespace

std::string to_string(const CaseChoice& choice) {
  constexpr const char* kLayouts[] = {"rows", "head_major", "padded"};
  return fmt::format(
      "{} head_dim {} / {} {}{}{}{} scale {} softcap {} seed {} q x {} bias x {}{}{} columns {} {} "
      "tile {}x{}{}",
      fdma::to_string(choice.dtype), choice.head_dim, choice.head_dim_v,
      kLayouts[static_cast<std::size_t>(choice.layout)], choice.has_bias ? " bias" : "",
      choice.wants_lse ? "" : " without lse", choice.wants_out_low ? " residual" : "",
      choice.softmax_scale, choice.softcap, choice.seed, choice.q_scale, choice.bias_scale,
      choice.split == SplitMode::never ? " not split" : "",
      choice.pack == PackMode::never ? " not packed" : "", fdma::to_string(choice.columns),
      fdma::to_string(choice.form), choice.tile.block_q, choice.tile.block_kv, choice.parts.text());
}

BackendAttentionCase::BackendAttentionCase(BackendFixture& fixture, const MaskCase& mask,
                                           const CaseHeads& heads, const CaseChoice& choice)
    : fixture_(fixture),
      mask_(mask),
      choice_(choice),
      shape_(shape_of(mask, heads, choice)),
      plan_(plan_of(mask, shape_, choice, fixture.backend())),
      q_(fixture, choice.dtype, shape_.batch, shape_.q_lens, shape_.heads_q, choice.head_dim,
         choice.layout, false),
      k_(fixture, choice.dtype, shape_.batch, shape_.kv_lens, shape_.heads_kv, choice.head_dim,
         choice.layout, false),
      v_(fixture, choice.dtype, shape_.batch, shape_.kv_lens, shape_.heads_kv, shape_.head_dim_v,
         choice.layout, false),
      bias_(fixture, DType::float32, shape_.batch, shape_.kv_lens, shape_.heads_kv, 0,
            choice.layout, false),
      out_(fixture, choice.dtype, shape_.batch, shape_.q_lens, shape_.heads_q, shape_.head_dim_v,
           choice.layout, true),
      lse_(fixture, DType::float32, shape_.batch, shape_.q_lens, shape_.heads_q, 0, choice.layout,
           true),
      out_low_(fixture, choice.dtype, shape_.batch, shape_.q_lens, shape_.heads_q,
               shape_.head_dim_v, choice.layout, true) {
  q_.randomize(choice.seed * 4, choice.q_scale);
  k_.randomize(choice.seed * 4 + 1, 1);
  v_.randomize(choice.seed * 4 + 2, 1);
  if (choice.has_bias) bias_.randomize(choice.seed * 4 + 3, choice.bias_scale);
  if (!choice.parts.has_any()) return;
  parts_ = std::make_unique<PartArrays>(fixture, mask, shape_, choice.parts, choice.seed);
}

AttentionTensors BackendAttentionCase::tensors() const {
  AttentionTensors tensors;
  tensors.q = q_.view().view();
  tensors.kv.k = k_.view().view();
  tensors.kv.v = v_.view().view();
  if (choice_.has_bias) tensors.key_bias = bias_.view().view();
  tensors.out = out_.view();
  if (choice_.wants_lse) tensors.lse = lse_.view();
  if (has_out_low()) tensors.out_low = out_low_.view();
  if (parts_) parts_->add_to(tensors);
  return tensors;
}

AttentionOptions BackendAttentionCase::options() const {
  AttentionOptions options;
  options.softmax_scale = choice_.softmax_scale;
  options.softcap = choice_.softcap;
  if (parts_) parts_->add_to(options);
  return options;
}

void BackendAttentionCase::poison(unsigned char byte) {
  out_.poison(byte);
  lse_.poison(byte);
  out_low_.poison(byte);
}

void BackendAttentionCase::fetch() {
  for (BackendTensor* tensor : {&q_, &k_, &v_, &bias_, &out_, &lse_, &out_low_}) tensor->fetch();
  if (parts_) parts_->fetch();
}

Result<void> BackendAttentionCase::run(unsigned char byte) {
  poison(byte);
  Result<void> ran = fixture_.forward(plan_, tensors(), options());
  if (ran) fetch();
  return ran;
}

ReferenceProblem BackendAttentionCase::problem() const {
  ReferenceProblem problem;
  problem.shape = shape_;
  problem.tensors = tensors();
  problem.host_tensors.q = q_.host_view().view();
  problem.host_tensors.kv.k = k_.host_view().view();
  problem.host_tensors.kv.v = v_.host_view().view();
  if (choice_.has_bias) problem.host_tensors.key_bias = bias_.host_view().view();
  problem.softmax_scale = choice_.softmax_scale != 0
                              ? static_cast<double>(choice_.softmax_scale)
                              : 1 / std::sqrt(static_cast<double>(shape_.head_dim));
  problem.softcap = static_cast<double>(choice_.softcap);
  problem.parts = parts_.get();
  // Heads and batch elements with one mask share its cells.
  std::map<std::pair<const Cells*, std::int32_t>, std::int64_t> first_cells;
  for (std::int32_t b = 0; b < shape_.batch; ++b) {
    const std::vector<std::int32_t> rows =
        sampled_rows(shape_.q_len(b), choice_.rows_per_head, choice_.seed);
    for (std::int32_t h = 0; h < shape_.heads_q; ++h) {
      const Cells& cells = mask_.at(b, h);
      for (const std::int32_t row : rows) {
        const auto [place, is_new] =
            first_cells.try_emplace({&cells, row}, static_cast<std::int64_t>(problem.cells.size()));
        if (is_new) {
          const auto first = cells.values.begin() + row * cells.kv_len;
          problem.cells.insert(problem.cells.end(), first, first + cells.kv_len);
        }
        problem.tasks.push_back({b, h, row, place->second});
      }
    }
  }
  return problem;
}

std::string BackendAttentionCase::check() {
  for (const auto& [name, tensor] : {std::pair{"q", &q_}, std::pair{"k", &k_}, std::pair{"v", &v_},
                                     std::pair{"key_bias", &bias_}, std::pair{"out", &out_},
                                     std::pair{"lse", &lse_}, std::pair{"out_low", &out_low_}}) {
    const std::string stray = tensor->stray_writes();
    if (!stray.empty()) return fmt::format("{}: {}: {}", mask_.name, name, stray);
  }
  if (parts_) {
    const std::string stray = parts_->stray_writes();
    if (!stray.empty()) return fmt::format("{}: {}", mask_.name, stray);
  }
  const ReferenceProblem rows = problem();
  const ReferenceRows wanted = fixture_.reference(rows);
  const auto dim = static_cast<std::size_t>(shape_.head_dim_v);
  TensorError out_error, lse_error;
  for (std::size_t i = 0; i < rows.tasks.size(); ++i) {
    const auto& [b, h, row, first_cell] = rows.tasks[i];
    const RowPlace place{b, h, row};
    const double lse = choice_.wants_lse ? lse_.get(b, row, h) : wanted.lse[i];
    if (wanted.lse[i] == -kInfinity) {
      bool is_zero = lse == -kInfinity;
      for (std::int64_t d = 0; d < shape_.head_dim_v; ++d) {
        is_zero &= out_.get(b, row, h, d) == 0;
        is_zero &= !has_out_low() || out_low_.get(b, row, h, d) == 0;
      }
      if (!is_zero)
        return fmt::format("{}: {}: no keys, but not 0 and -inf", mask_.name, to_string(place));
      continue;
    }
    lse_error.add(lse, wanted.lse[i], wanted.explicit_lse[i], place);
    for (std::size_t d = 0; d < dim; ++d) {
      const double value = out_.get(b, row, h, static_cast<std::int64_t>(d));
      out_error.add(value, wanted.out[i * dim + d],
                    static_cast<double>(wanted.explicit_out[i * dim + d]), place);
      const double out_low =
          has_out_low() ? out_low_.get(b, row, h, static_cast<std::int64_t>(d)) : 0;
      if (!(std::fabs(out_low) <= rounding_step(choice_.dtype, value) / 2))
        return fmt::format("{}: {}: residual {} of {}", mask_.name, to_string(place), out_low,
                           value);
    }
  }
  std::string wrong = bound_error("out", out_error);
  if (wrong.empty()) wrong = bound_error("lse", lse_error);
  return wrong.empty() ? "" : mask_.name + ": " + wrong;
}

double BackendAttentionCase::error_with_out_low() {
  const ReferenceProblem rows = problem();
  const ReferenceRows wanted = fixture_.reference(rows);
  const auto dim = static_cast<std::size_t>(shape_.head_dim_v);
  double most = 0;
  for (std::size_t i = 0; i < rows.tasks.size(); ++i) {
    const auto& [b, h, row, first_cell] = rows.tasks[i];
    if (wanted.lse[i] == -kInfinity) continue;
    for (std::size_t d = 0; d < dim; ++d) {
      const auto column = static_cast<std::int64_t>(d);
      const double value = out_.get(b, row, h, column) + out_low_.get(b, row, h, column);
      most = std::max(most, std::fabs(value - wanted.out[i * dim + d]));
    }
  }
  return most;
}

std::vector<unsigned char> BackendAttentionCase::result_bytes() const {
  std::vector<unsigned char> bytes = out_.bytes();
  const auto append = [&](const BackendTensor& tensor) {
    const std::vector<unsigned char> more = tensor.bytes();
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  if (choice_.wants_lse) append(lse_);
  if (has_out_low()) append(out_low_);
  return bytes;
}

void add_counts(PlanCounts& sum, const PlanCounts& counts) {
  sum.full_tiles += counts.full_tiles;
  sum.bitmap_tiles += counts.bitmap_tiles;
  sum.row_tiles += counts.row_tiles;
  sum.column_tiles += counts.column_tiles;
  sum.gather_chunks += counts.gather_chunks;
  sum.gather_entries += counts.gather_entries;
  sum.empty_items += counts.empty_items;
  sum.moved_keys += counts.moved_keys;
}

std::string check_case(BackendFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                       const CaseChoice& choice, PlanCounts* counts) {
  BackendAttentionCase test_case(fixture, mask, heads, choice);
  if (counts != nullptr) add_counts(*counts, test_case.plan().counts);
  const std::string where = fmt::format(" ({} batch elements, {} / {} heads, {})", heads.batch,
                                        heads.heads_q, heads.heads_kv, to_string(choice));
  if (const auto ran = test_case.run(); !ran) return mask.name + ": " + ran.error().message + where;
  const std::string wrong = test_case.check();
  return wrong.empty() ? "" : wrong + where;
}

}  // namespace fdma::testing
