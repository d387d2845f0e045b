// combine_partials against the same sums in float64 on the host.
#include <cuda_fp16.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cuda/combine_partials.hpp"
#include "device_array.hpp"
#include "fdma/formats/convert.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using gpu_test::require;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint16_t kPoison = 0x7b7b;
constexpr float kLsePoison = 12345.0F;

std::int32_t pick(std::mt19937& rng, std::int32_t low, std::int32_t high) {  // both included
  return std::uniform_int_distribution<std::int32_t>(low, high)(rng);
}

// Shape of a problem. Every tile row of every batch element and head set is combined.
struct Problem {
  std::int32_t head_dim_v = 128;
  std::int32_t group_size = 1;
  std::int32_t heads_kv = 2;
  std::int32_t heads_per_tile = 1;
  std::int32_t num_partials = 4;  ///< partials of a row; some rows of a list have one or two fewer
  bool is_grid = false;           ///< the rows are those of a closed-form plan
  bool is_bfloat16 = true;
  bool wants_lse = true;
  double lse_scale = 3;
  std::vector<std::int32_t> q_lens{128, 65};
  bool has_run_time_lengths = false;  ///< lengths of the call are half as long as those of the plan
  std::string text() const {
    return fmt::format("head_dim_v {} group {} x {} tile of {} partials {}{}{}{} lse {}",
                       head_dim_v, group_size, heads_kv, heads_per_tile, num_partials,
                       is_grid ? " grid" : "", is_bfloat16 ? "" : " float16",
                       has_run_time_lengths ? " lengths" : "", lse_scale);
  }
};

class Combine {
 public:
  Combine(const Problem& problem, std::uint32_t seed) : p_(problem), rng_(seed) {
    block_q_ = gpu::kPartialRows / p_.heads_per_tile;
    sets_ = static_cast<std::int32_t>(ceil_div(p_.group_size, p_.heads_per_tile));
    max_q_len_ = *std::max_element(p_.q_lens.begin(), p_.q_lens.end());
    q_tiles_ = static_cast<std::int32_t>(ceil_div(max_q_len_, block_q_));
    grid_ = {q_tiles_, p_.heads_kv * sets_, p_.num_partials};
    make_rows();
    make_partials();
  }

  // Says what is wrong; empty if nothing is.
  std::string check() {
    run();
    const std::vector<std::uint16_t> first = out_;
    const std::vector<float> first_lse = lse_;
    run();
    if (first != out_ || std::memcmp(first_lse.data(), lse_.data(), 4 * lse_.size()) != 0)
      return "two runs differ";
    std::vector<bool> is_written(out_.size(), false), has_lse(lse_.size(), false);
    for (const SplitRow& row : rows_) {
      for (std::int32_t r = 0; r < gpu::kPartialRows; ++r) {
        if (!exists(row, r)) continue;
        const std::string error = check_row(row, r, is_written, has_lse);
        if (!error.empty())
          return fmt::format("batch {} head {} q_tile {} row {}: {}", row.batch, row.head,
                             row.q_tile, r, error);
      }
    }
    for (std::size_t i = 0; i < out_.size(); ++i)
      if (!is_written[i] && out_[i] != kPoison) return fmt::format("out[{}] was written", i);
    for (std::size_t i = 0; i < lse_.size(); ++i)
      if (!has_lse[i] && lse_[i] != kLsePoison) return fmt::format("lse[{}] was written", i);
    return {};
  }

 private:
  std::int32_t q_len(std::int32_t batch) const {
    const std::int32_t length = p_.q_lens[static_cast<std::size_t>(batch)];
    return p_.has_run_time_lengths ? length / 2 : length;
  }
  bool exists(const SplitRow& row, std::int32_t r) const {
    return row.q_tile * block_q_ + r / p_.heads_per_tile < q_len(row.batch) &&
           row.head % p_.group_size + r % p_.heads_per_tile < p_.group_size;
  }
  std::size_t out_at(std::int64_t b, std::int64_t q, std::int64_t h) const {
    return static_cast<std::size_t>(((b * max_q_len_ + q) * heads() + h) * p_.head_dim_v);
  }
  std::size_t lse_at(std::int64_t b, std::int64_t q, std::int64_t h) const {
    return static_cast<std::size_t>((b * heads() + h) * max_q_len_ + q);
  }
  std::int64_t heads() const { return std::int64_t{p_.heads_kv} * p_.group_size; }
  std::int32_t batch() const { return static_cast<std::int32_t>(p_.q_lens.size()); }

  void make_rows() {
    for (std::int32_t b = 0; b < batch(); ++b) {
      for (std::int32_t tile = 0; tile < q_tiles_; ++tile) {
        for (std::int32_t set = 0; set < grid_.num_head_sets; ++set) {
          const std::int32_t head = set / sets_ * p_.group_size + set % sets_ * p_.heads_per_tile;
          const std::int32_t partials =
              p_.is_grid ? p_.num_partials
                         : std::max<std::int32_t>(2, p_.num_partials - pick(rng_, 0, 2));
          if (p_.is_grid) {
            EXPECT_EQ(num_partials_, grid_.partial_of(b, tile, set, 0));
          } else if (tile * block_q_ >= q_len(b)) {
            continue;
          }
          rows_.push_back({b, head, tile, num_partials_, partials});
          num_partials_ += partials;
        }
      }
    }
  }

  // Makes random partials. Some rows have no keys in some or all partials; their out is poison
  // there. Rows that do not exist are poison too.
  void make_partials() {
    std::normal_distribution<float> normal;
    const gpu::PartialLayout layout{p_.head_dim_v, num_partials_};
    partials_.assign(static_cast<std::size_t>(layout.bytes() / 4), kNan);
    for (const SplitRow& row : rows_) {
      for (std::int32_t r = 0; r < gpu::kPartialRows; ++r) {
        if (!exists(row, r)) continue;
        const std::int32_t kind = pick(rng_, 0, 9);
        for (std::int32_t i = 0; i < row.num_partials; ++i) {
          float& lse = partial_lse(row.first_partial + i, r);
          lse = static_cast<float>(p_.lse_scale) * normal(rng_) + 5;
          if (kind == 0 || (kind == 1 && i % 3 != 1) || (kind == 2 && i > 0)) lse = -kInfinity;
          if (lse == -kInfinity) continue;
          float* out = partial_out(row.first_partial + i, r);
          for (std::int32_t c = 0; c < p_.head_dim_v; ++c) out[c] = normal(rng_);
          if (kind == 3 && i == row.num_partials - 1) out[p_.head_dim_v - 1] = kNan;
          if (kind == 4 && i == row.num_partials / 2) lse = kNan;
        }
      }
    }
  }
  float* partial_out(std::int32_t partial, std::int32_t r) {
    const gpu::PartialLayout layout{p_.head_dim_v, num_partials_};
    return partials_.data() + layout.out_at(partial, r) / 4;
  }
  float& partial_lse(std::int32_t partial, std::int32_t r) {
    const gpu::PartialLayout layout{p_.head_dim_v, num_partials_};
    return partials_[static_cast<std::size_t>(layout.lse_at(partial, r) / 4)];
  }

  void run() {
    const gpu::PartialLayout layout{p_.head_dim_v, num_partials_};
    const DeviceArray<float> partials(partials_);
    const DeviceArray<SplitRow> rows(rows_);
    std::vector<int2> lengths;
    std::vector<std::int32_t> q_lens;
    for (std::int32_t b = 0; b < batch(); ++b) {
      lengths.push_back(make_int2(p_.q_lens[static_cast<std::size_t>(b)], 1000));
      q_lens.push_back(q_len(b));
    }
    const DeviceArray<int2> d_lengths(lengths);
    const DeviceArray<std::int32_t> d_q_lens(q_lens);
    const DeviceArray<std::uint16_t> out(std::vector<std::uint16_t>(
        static_cast<std::size_t>(batch() * max_q_len_ * heads() * p_.head_dim_v), kPoison));
    const DeviceArray<float> lse(
        std::vector<float>(static_cast<std::size_t>(batch() * max_q_len_ * heads()), kLsePoison));
    gpu::CombineParams params{};
    params.partial_out = partials.data();
    params.partial_lse = partials.data() + layout.out_bytes() / 4;
    params.split_rows = p_.is_grid ? nullptr : rows.data();
    params.num_rows = static_cast<std::int32_t>(rows_.size());
    params.max_partials = p_.num_partials;
    params.grid = grid_;
    params.block_q = block_q_;
    params.heads_per_tile = p_.heads_per_tile;
    params.group_size = p_.group_size;
    params.head_dim_v = p_.head_dim_v;
    params.max_q_len = max_q_len_;
    params.lengths = d_lengths.data();
    params.q_lens = p_.has_run_time_lengths ? d_q_lens.data() : nullptr;
    params.is_bfloat16 = p_.is_bfloat16;
    params.out = out.data();
    const std::int64_t row_elements = std::int64_t{p_.head_dim_v} * heads();
    params.out_strides = {row_elements * max_q_len_, row_elements, p_.head_dim_v};
    params.lse = {p_.wants_lse ? lse.data() : nullptr, std::int64_t{max_q_len_} * heads(),
                  max_q_len_, 1};
    require(gpu::combine_partials(params, nullptr), "combine_partials");
    out_ = out.to_host();
    lse_ = lse.to_host();
  }

  float value(std::uint16_t bits) const {
    if (p_.is_bfloat16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
    return __half2float(std::bit_cast<__half>(bits));
  }

  std::string check_row(const SplitRow& row, std::int32_t r, std::vector<bool>& is_written,
                        std::vector<bool>& has_lse) {
    const std::int32_t q = row.q_tile * block_q_ + r / p_.heads_per_tile;
    const std::int32_t head = row.head + r % p_.heads_per_tile;
    double largest = -kInfinity, sum = 0;
    bool is_nan = false;
    for (std::int32_t i = 0; i < row.num_partials; ++i) {
      const float lse = partial_lse(row.first_partial + i, r);
      is_nan = is_nan || std::isnan(lse);
      if (!std::isnan(lse)) largest = std::max<double>(largest, lse);
    }
    std::vector<double> out(static_cast<std::size_t>(p_.head_dim_v), 0);
    for (std::int32_t i = 0; i < row.num_partials; ++i) {
      const float lse = partial_lse(row.first_partial + i, r);
      if (lse == -kInfinity) continue;
      const double weight = std::exp(lse - largest);
      sum += weight;
      for (std::int32_t c = 0; c < p_.head_dim_v; ++c)
        out[static_cast<std::size_t>(c)] += weight * partial_out(row.first_partial + i, r)[c];
    }
    const std::size_t at = out_at(row.batch, q, head);
    for (std::int32_t c = 0; c < p_.head_dim_v; ++c) {
      is_written[at + static_cast<std::size_t>(c)] = true;
      const double got = value(out_[at + static_cast<std::size_t>(c)]);
      const double wanted = sum == 0 ? 0 : out[static_cast<std::size_t>(c)] / sum;
      if (is_nan || std::isnan(wanted)) {
        if (!std::isnan(got)) return fmt::format("column {}: expected NaN, got {}", c, got);
        continue;
      }
      const double bound =
          sum == 0 ? 0 : std::abs(wanted) * (p_.is_bfloat16 ? 0x1p-8 : 0x1p-11) + 2e-5;
      if (!(std::abs(got - wanted) <= bound))
        return fmt::format("column {}: expected {}, got {}", c, wanted, got);
    }
    if (!p_.wants_lse) return {};
    const std::size_t lse_place = lse_at(row.batch, q, head);
    has_lse[lse_place] = true;
    const float lse = lse_[lse_place];
    if (is_nan) return std::isnan(lse) ? "" : fmt::format("lse: expected NaN, got {}", lse);
    if (sum == 0) return lse == -kInfinity ? "" : fmt::format("lse: expected -inf, got {}", lse);
    const double wanted = largest + std::log(sum);
    if (std::abs(lse - wanted) <= 1e-5 + 3e-7 * std::abs(wanted)) return {};
    return fmt::format("lse: expected {}, got {}", wanted, lse);
  }

  Problem p_;
  std::mt19937 rng_;
  std::int32_t block_q_, sets_, max_q_len_, q_tiles_;
  gpu::SplitGrid grid_;
  std::vector<SplitRow> rows_;
  std::int32_t num_partials_ = 0;
  std::vector<float> partials_;
  std::vector<std::uint16_t> out_;
  std::vector<float> lse_;
};

TEST(CombinePartials, GivesTheWeightedMeanForEveryShape) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::uint32_t seed = 0;
  for (const std::int32_t head_dim_v : {8, 64, 80, 128, 136, 256}) {
    for (const std::int32_t num_partials : {2, 4, 5, 16, 17, 33, 132, 300}) {
      for (const std::int32_t group : {1, 4, 7, 12}) {
        Problem problem;
        problem.head_dim_v = head_dim_v;
        problem.num_partials = num_partials;
        problem.group_size = group;
        problem.heads_kv = 1 + static_cast<std::int32_t>(seed % 2);
        problem.heads_per_tile = group == 1 ? 1 : group == 4 ? 4 : 8;
        problem.is_bfloat16 = seed % 3 != 0;
        problem.is_grid = seed % 5 == 1;
        problem.wants_lse = seed % 7 != 2;
        problem.q_lens = group == 1 ? std::vector<std::int32_t>{130, 3} : std::vector{1, 19};
        problem.has_run_time_lengths = problem.is_grid && seed % 2 == 0;
        ASSERT_EQ(Combine(problem, ++seed).check(), "") << problem.text();
      }
    }
  }
}

TEST(CombinePartials, HoldsWhereSumsAreFarApart) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (const double scale : {0.0, 1e-3, 50.0, 1e4, 1e30}) {
    for (const std::int32_t num_partials : {3, 9, 40}) {
      Problem problem;
      problem.lse_scale = scale;
      problem.num_partials = num_partials;
      problem.q_lens = {200, 0, 77};
      EXPECT_EQ(Combine(problem, 7).check(), "") << problem.text();
    }
  }
}

TEST(CombinePartials, TakesLengthsOfTheCall) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (const std::int32_t heads : {1, 4}) {
    Problem problem;
    problem.is_grid = true;
    problem.has_run_time_lengths = true;
    problem.group_size = heads;
    problem.heads_per_tile = heads;
    problem.q_lens = {300, 41, 1};
    EXPECT_EQ(Combine(problem, 9).check(), "") << problem.text();
  }
}

TEST(CombinePartials, HasNothingToDoWithoutRows) {
  FDMA_SKIP_WITHOUT_HOPPER();
  EXPECT_EQ(gpu::combine_partials({}, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace fdma
