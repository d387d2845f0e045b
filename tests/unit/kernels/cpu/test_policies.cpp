// Policies that a test adds to the CPU kernels, forward and backward, against the reference: scores
// that add a number per head, square the product or add a logit to the sum of a row, weights that drop pairs by parity, and a reader that reverses keys.
// Each is one structure, and the library's sources do not know it.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention_reference.hpp"
#include "backend/mask_cases.hpp"
#include "call/attention_call.hpp"
#include "call/backward_call.hpp"
#include "cpu/backward_work_tile-inl.hpp"
#include "cpu/forward_work_tile-inl.hpp"
#include "cpu/kv_reader.hpp"
#include "cpu/query_rows-inl.hpp"
#include "cpu/score-inl.hpp"
#include "cpu/weight-inl.hpp"
#include "plan/plan_forms.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {
namespace {

using reference::HeadGradients;
using reference::HeadProblem;
using testing::MaskCase;

// ---- the toys

constexpr float number_of(std::int64_t head) { return 0.5F * static_cast<float>(head) - 0.7F; }

struct HeadNumberScore : NoScore {
  static constexpr bool kIsIdentity = false;
  float number = 0;

  void begin_head(std::int64_t, std::int64_t head) { number = number_of(head) * kLog2E; }
  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs&) const {
    return hn::Add(x, hn::Set(FloatTag(), number));
  }
};

// The logit is the product plus a part of its square, so its gradient asks for the product.
struct SquareScore : NoScore {
  static constexpr bool kIsIdentity = false;
  static constexpr float kPart = 0.1F / kLog2E;  // of squares of logits in powers of two

  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs&) const {
    return hn::MulAdd(hn::Mul(x, x), hn::Set(FloatTag(), kPart), x);
  }
  template <class Pairs>
  HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec x, const Pairs&) const {
    return hn::MulAdd(hn::Mul(ds, x), hn::Set(FloatTag(), 2 * kPart), ds);
  }
};
constexpr double squared(double x) { return x + 0.1 * x * x; }
constexpr double slope_of_squared(double x) { return 1 + 0.2 * x; }

// A logit without a key in the sum of each row, one for each query and head.
constexpr float sink_of(std::int64_t head, std::int64_t q) {
  return 1.5F - 0.3F * static_cast<float>(head) + 0.02F * static_cast<float>(q);
}

struct SinkScore : NoScore {
  static constexpr bool kFinishesRows = true;
  std::int64_t head = 0;

  void begin_head(std::int64_t, std::int64_t of_head) { head = of_head; }
  float finish_row(float max, float sum, std::int64_t q) const {
    return sum + std::exp2(sink_of(head, q) * kLog2E - max);
  }
};

constexpr bool keeps(std::int64_t q, std::int64_t k) { return (q + k) % 2 == 0; }

struct EvenPairs : WholeWeights {
  template <class Pairs>
  HWY_INLINE FloatVec weigh(FloatVec x, const Pairs& pairs) const {
    const hn::RebindToSigned<FloatTag> tag;
    const auto sums = hn::Iota(tag, static_cast<std::int32_t>(pairs.q + pairs.k));
    const auto is_even = hn::Eq(hn::And(sums, hn::Set(tag, 1)), hn::Zero(tag));
    return hn::IfThenElseZero(hn::RebindMask(FloatTag(), is_even), x);
  }
};

struct ReversedKv {
  StridedKv kv;
  std::int64_t kv_len;

  const char* k_row(std::int64_t key) const { return kv.k_row(kv_len - 1 - key); }
  const char* v_row(std::int64_t key) const { return kv.v_row(kv_len - 1 - key); }
};

// ---- calls with them

constexpr std::int64_t kBatch = 2, kHeadsQ = 4, kHeadsKv = 2, kQLen = 45, kKvLen = 150;
constexpr std::int32_t kDim = 20, kDimV = 36;

struct Floats {
  Floats(std::int64_t rows, std::int64_t heads, std::int64_t columns, unsigned seed)
      : extents{kBatch, rows, heads, columns},
        values(static_cast<std::size_t>(kBatch * rows * heads * columns)) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (float& value : values) value = seed == 0 ? 99.0F : normal(rng);
  }
  MutableTensorView view() {
    return make_contiguous_mutable_view(values.data(), DType::float32, 4, extents);
  }
  std::vector<double> of_head(std::int64_t b, std::int64_t h) const {
    std::vector<double> rows;
    for (std::int64_t row = 0; row < extents[1]; ++row) {
      for (std::int64_t c = 0; c < extents[3]; ++c) {
        rows.push_back(values[static_cast<std::size_t>(
            ((b * extents[1] + row) * extents[2] + h) * extents[3] + c)]);
      }
    }
    return rows;
  }

  std::int64_t extents[4];
  std::vector<float> values;
};

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted,
                 const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    error = std::max(error, std::abs(got[i] - wanted[i]));
  }
  EXPECT_LE(error, 2e-6 * largest + 1e-6) << what;
}

// What a policy means: the reference's results of one head.
struct Meaning {
  std::function<void(HeadProblem&, std::int64_t head)> change_inputs = [](HeadProblem&, auto) {};
  bool (*keeps)(std::int64_t q, std::int64_t k) = [](std::int64_t, std::int64_t) { return true; };
  double (*logit)(double x) = [](double x) { return x; };  // of the scaled product, and its slope
  double (*slope)(double x) = [](double) { return 1.0; };
  // What is added to the sum of a row, as its logarithm.
  double (*sink)(std::int64_t head, std::int64_t q) = [](std::int64_t, std::int64_t) {
    return -std::numeric_limits<double>::infinity();
  };
};

// Out of one head, with lse and the gradients, by the definition of the policies.
std::vector<double> apply_policies(const HeadProblem& p, std::int64_t head,
                                   const std::vector<double>& dout, const Meaning& meaning,
                                   std::vector<double>& lse, HeadGradients& gradients) {
  const auto at = [](std::int64_t row, std::int64_t width, std::int64_t column) {
    return static_cast<std::size_t>(row * width + column);
  };
  std::vector<double> out(static_cast<std::size_t>(p.q_len * p.head_dim_v));
  gradients = {std::vector<double>(p.q.size()),
               std::vector<double>(p.k.size()),
               std::vector<double>(p.v.size()),
               {}};
  for (std::int64_t q = 0; q < p.q_len; ++q) {
    std::vector<double> weights, dweights, slopes;
    double delta = 0, sum = 0;
    for (std::int64_t k = 0; k < p.kv_len; ++k) {
      double x = 0;
      for (std::int64_t d = 0; d < p.head_dim; ++d) {
        x += p.softmax_scale * p.q[at(q, p.head_dim, d)] * p.k[at(k, p.head_dim, d)];
      }
      const double bias = p.bias.empty() ? 0 : p.bias[static_cast<std::size_t>(k)];
      const bool is_seen = p.cells[at(q, p.kv_len, k)] != 0;
      weights.push_back(is_seen ? std::exp(meaning.logit(x) + bias) : 0);
      slopes.push_back(meaning.slope(x));
      sum += weights.back();
    }
    lse.push_back(std::log(sum));
    for (std::int64_t k = 0; k < p.kv_len; ++k) {
      double& weight = weights[static_cast<std::size_t>(k)];
      if (sum > 0) weight /= sum + std::exp(meaning.sink(head, q));
      double dp = 0;
      const double kept = meaning.keeps(q, k) ? weight : 0;
      for (std::int64_t j = 0; j < p.head_dim_v; ++j) {
        const double g = dout[at(q, p.head_dim_v, j)];
        out[at(q, p.head_dim_v, j)] += kept * p.v[at(k, p.head_dim_v, j)];
        gradients.dv[at(k, p.head_dim_v, j)] += kept * g;
        if (meaning.keeps(q, k)) dp += g * p.v[at(k, p.head_dim_v, j)];
      }
      dweights.push_back(dp);
      delta += weight * dp;
    }
    for (std::int64_t k = 0; k < p.kv_len; ++k) {
      const auto key = static_cast<std::size_t>(k);
      const double ds = p.softmax_scale * slopes[key] * weights[key] * (dweights[key] - delta);
      for (std::int64_t d = 0; d < p.head_dim; ++d) {
        gradients.dq[at(q, p.head_dim, d)] += ds * p.k[at(k, p.head_dim, d)];
        gradients.dk[at(k, p.head_dim, d)] += ds * p.q[at(q, p.head_dim, d)];
      }
    }
  }
  return out;
}

class Policies : public ::testing::Test {
 protected:
  // Keys that most rows see, and a band; the last row sees none.
  Policies()
      : mask_(testing::case_of("band",
                               testing::make_cells(kQLen, kKvLen,
                                                   [](auto q, auto k) {
                                                     return q + 1 < kQLen &&
                                                            (k < 40 || (k >= q && k < q + 60));
                                                   }),
                               {16, 16})),
        shape_(testing::shape_for(mask_.mask, kBatch, kHeadsQ, kHeadsKv)) {
    shape_.head_dim = kDim;
    shape_.head_dim_v = kDimV;
  }

  AttentionPlan plan(Direction direction) const {
    PlanOptions options;
    options.direction = direction;
    options.tile = {32, 32};
    return *make_plan(mask_.mask, shape_, {}, options);
  }

  // `reader(call, batch, kv_head)` makes the reader of a work tile.
  template <class Score, class Weight, class MakeReader>
  void run(const Score& score, const Weight& weight, const MakeReader& reader) {
    const TensorView lse_view = make_contiguous_view(lse_.data(), DType::float32, 3, lse_extents_);
    AttentionTensors forward;
    forward.q = q_.view();
    forward.kv = {KvLayout::contiguous, k_.view(), v_.view()};
    forward.out = out_.view();
    forward.lse = lse_view.with_data(static_cast<void*>(lse_.data()));
    const AttentionPlan forward_plan = plan(Direction::forward);
    const auto call = checked_call(shape_, {}, forward, {}, Device::cpu);
    ASSERT_TRUE(call) << call.error().message;
    const SegmentPlan& segments = testing::segments_of(forward_plan);
    const CpuCall cpu_call{*call, &forward_plan, &segments, {}};
    Workspace workspace(shape_, forward_plan.tile);
    for (const WorkTile& tile : segments.work_tiles) {
      const auto kv = reader(cpu_call, tile.batch, tile.head / shape_.group_size());
      ForwardWorkTile(cpu_call, tile, workspace, score, weight, kv).run();
    }

    BackwardTensors backward;
    backward.q = forward.q;
    backward.kv = forward.kv;
    backward.out = forward.out;
    backward.lse = lse_view;
    backward.dout = dout_.view();
    backward.dq = dq_.view();
    backward.dk = dk_.view();
    backward.dv = dv_.view();
    const AttentionPlan backward_plan = plan(Direction::backward);
    const auto checked =
        checked_backward_call(Direction::backward, shape_, {}, backward, {}, Device::cpu);
    ASSERT_TRUE(checked) << checked.error().message;
    const SegmentPlan& backward_segments = testing::segments_of(backward_plan);
    BackwardRun run(*checked, backward_plan, &backward_segments);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t h = 0; h < kHeadsQ; ++h) prepare_rows_with(run, score, b, h, 0, kQLen);
    }
    BackwardPass pass(backward_plan, false);
    BackwardWorkspace backward_workspace(run, pass);
    const auto group_size = static_cast<std::size_t>(shape_.group_size());
    for (std::size_t i = 0; i < backward_segments.work_tiles.size(); i += group_size) {
      const WorkTile* const group = backward_segments.work_tiles.data() + i;
      backward_workspace.tickets.clear();
      for (std::size_t g = 0; g < group_size; ++g) {
        pass.dq_tickets.draw(group[g], run.tiles_of(group[g]), backward_workspace.tickets);
      }
      run_group_with(run, pass, group, backward_workspace, score, weight,
                     reader(run, group->batch, group->head / shape_.group_size()));
    }
  }

  void check(const Meaning& meaning) const {
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t h_kv = 0; h_kv < kHeadsKv; ++h_kv) {
        std::vector<double> dk(static_cast<std::size_t>(kKvLen * kDim));
        std::vector<double> dv(static_cast<std::size_t>(kKvLen * kDimV));
        for (std::int64_t h = h_kv * shape_.group_size(); h < (h_kv + 1) * shape_.group_size();
             ++h) {
          SCOPED_TRACE("batch element " + std::to_string(b) + ", head " + std::to_string(h));
          HeadProblem problem{kQLen,
                              kKvLen,
                              kDim,
                              kDimV,
                              q_.of_head(b, h),
                              k_.of_head(b, h_kv),
                              v_.of_head(b, h_kv),
                              {},
                              1 / std::sqrt(double{kDim}),
                              0,
                              mask_.at(b, h).values.data()};
          meaning.change_inputs(problem, h);
          std::vector<double> lse, lse_got;
          HeadGradients gradients;
          const std::vector<double> out =
              apply_policies(problem, h, dout_.of_head(b, h), meaning, lse, gradients);
          for (std::int64_t q = 0; q + 1 < kQLen; ++q) {
            lse_got.push_back(lse_[static_cast<std::size_t>((b * kHeadsQ + h) * kQLen + q)]);
          }
          expect_near(lse_got, {lse.begin(), lse.end() - 1}, "lse");
          expect_near(out_.of_head(b, h), out, "out");
          expect_near(dq_.of_head(b, h), gradients.dq, "dq");
          for (std::size_t i = 0; i < dk.size(); ++i) dk[i] += gradients.dk[i];
          for (std::size_t i = 0; i < dv.size(); ++i) dv[i] += gradients.dv[i];
        }
        expect_near(dk_.of_head(b, h_kv), dk, "dk");
        expect_near(dv_.of_head(b, h_kv), dv, "dv");
      }
    }
  }

  static constexpr auto kInOrder = [](const CheckedInputs& call, std::int32_t batch,
                                      std::int32_t kv_head) {
    return StridedKv(call, batch, kv_head);
  };

  MaskCase mask_;
  AttentionShape shape_;
  Floats q_{kQLen, kHeadsQ, kDim, 1}, k_{kKvLen, kHeadsKv, kDim, 2}, v_{kKvLen, kHeadsKv, kDimV, 3};
  Floats out_{kQLen, kHeadsQ, kDimV, 0}, dout_{kQLen, kHeadsQ, kDimV, 4};
  Floats dq_{kQLen, kHeadsQ, kDim, 0}, dk_{kKvLen, kHeadsKv, kDim, 0},
      dv_{kKvLen, kHeadsKv, kDimV, 0};
  const std::int64_t lse_extents_[3] = {kBatch, kHeadsQ, kQLen};
  std::vector<float> lse_ = std::vector<float>(static_cast<std::size_t>(kBatch * kHeadsQ * kQLen));
};

TEST_F(Policies, OfTheLibraryAgreeWithTheReference) {
  run(NoScore{}, WholeWeights{}, kInOrder);
  check({});
}

TEST_F(Policies, AScoreMayAddANumberPerHead) {
  run(HeadNumberScore{}, WholeWeights{}, kInOrder);
  check({.change_inputs = [](HeadProblem& problem, std::int64_t head) {
    problem.bias.assign(static_cast<std::size_t>(kKvLen), double{number_of(head)});
  }});
}

TEST_F(Policies, AScoreMayBendTheProduct) {
  run(SquareScore{}, WholeWeights{}, kInOrder);
  check({.logit = squared, .slope = slope_of_squared});
}

TEST_F(Policies, AScoreMayAddToTheSumOfARow) {
  run(SinkScore{}, WholeWeights{}, kInOrder);
  check({.sink = [](std::int64_t head, std::int64_t q) { return double{sink_of(head, q)}; }});
}

TEST_F(Policies, WeightsMayDropPairs) {
  run(NoScore{}, EvenPairs{}, kInOrder);
  check({.keeps = keeps});
}

TEST_F(Policies, AReaderMayReverseKeys) {
  run(NoScore{}, WholeWeights{},
      [](const CheckedInputs& call, std::int32_t batch, std::int32_t kv_head) {
        return ReversedKv{StridedKv(call, batch, kv_head), kKvLen};
      });
  check({.change_inputs = [](HeadProblem& problem, std::int64_t) {
    const auto reverse_rows = [](std::vector<double>& rows, std::int64_t width) {
      const std::vector<double> before = rows;
      for (std::int64_t k = 0; k < kKvLen; ++k) {
        std::copy_n(before.begin() + (kKvLen - 1 - k) * width, width, rows.begin() + k * width);
      }
    };
    reverse_rows(problem.k, kDim);
    reverse_rows(problem.v, kDimV);
  }});
}

TEST_F(Policies, Combine) {
  run(HeadNumberScore{}, EvenPairs{},
      [](const CheckedInputs& call, std::int32_t batch, std::int32_t kv_head) {
        return ReversedKv{StridedKv(call, batch, kv_head), kKvLen};
      });
  check({.change_inputs =
             [](HeadProblem& problem, std::int64_t head) {
               problem.bias.assign(static_cast<std::size_t>(kKvLen), double{number_of(head)});
               for (std::int64_t k = 0; k < kKvLen / 2; ++k) {
                 const std::int64_t other = kKvLen - 1 - k;
                 std::swap_ranges(problem.k.begin() + k * kDim, problem.k.begin() + (k + 1) * kDim,
                                  problem.k.begin() + other * kDim);
                 std::swap_ranges(problem.v.begin() + k * kDimV,
                                  problem.v.begin() + (k + 1) * kDimV,
                                  problem.v.begin() + other * kDimV);
               }
             },
         .keeps = keeps});
}

}  // namespace
}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
