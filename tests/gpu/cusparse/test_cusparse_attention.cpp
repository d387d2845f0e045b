// Attention by cuSPARSE against float64 and against the attention kernel: two ways to the same
// numbers that share no code but the rows of the mask. Where the library is not found the tests
// skip; the environment variable FDMA_CUSPARSE names it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend_cases.hpp"
#include "fdma/kernels/cusparse_attention.hpp"
#include "gpu_fixture.hpp"
#include "mask_suite.hpp"

namespace fdma {
namespace {

using gpu_test::GpuMachine;
using gpu_test::ReferenceOn;
using gpu_test::require;
using testing::AttentionTrial;
using testing::Cells;
using ::testing::HasSubstr;
using testing::MaskCase;
using testing::TrialChoice;
using testing::TrialHeads;

constexpr BlockShape kBlock{128, 128};

// Attention trials by cuSPARSE. The plan of a trial says no more than shape and score; one for the
// CPU takes every type and head size.
class CusparseMachine : public GpuMachine {
 public:
  CusparseMachine(const MaskCase& mask, CusparseOptions options,
                  ReferenceOn reference = ReferenceOn::device)
      : GpuMachine(reference), mask_(mask), options_(std::move(options)) {}

  Backend backend() const override { return Backend::cpu; }
  Result<void> forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                       const AttentionOptions& options) override {
    FDMA_TRY(CusparseAttention attention,
             CusparseAttention::make(mask_.mask, plan.shape, plan.score, options_));
    for (int i = 0; i < 2; ++i) {  // the second run finds the buffers of the first
      FDMA_TRY_VOID(attention.forward(tensors, nullptr, options));
    }
    require(cudaDeviceSynchronize(), "CusparseAttention::forward");
    return {};
  }

 private:
  const MaskCase& mask_;
  CusparseOptions options_;
};

class CusparseOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    FDMA_SKIP_WITHOUT_HOPPER();
    const auto version = cusparse_version();
    if (!version) GTEST_SKIP() << version.error().message;
  }
};

class CusparseZooOnGpu : public CusparseOnGpu, public ::testing::WithParamInterface<int> {};

CusparseOptions options_of(CusparsePrecision precision, bool has_wide_indices = false,
                           CusparseSpmm spmm = CusparseSpmm::alg3) {
  CusparseOptions options;
  options.precision = precision;
  options.spmm = spmm;
  options.has_wide_indices = has_wide_indices;
  return options;
}

std::string check_by_cusparse(const MaskCase& mask, const TrialHeads& heads,
                              const TrialChoice& choice, const CusparseOptions& options,
                              ReferenceOn reference = ReferenceOn::device) {
  CusparseMachine machine(mask, options, reference);
  const std::string wrong = testing::check_trial(machine, mask, heads, choice);
  if (wrong.empty()) return wrong;
  return wrong + (options.precision == CusparsePrecision::tensor ? " in the tensors' types"
                                                                 : " in float32");
}

TEST_P(CusparseZooOnGpu, IsAsAccurateAsAnExplicitProduct) {
  int number = 0;
  for (const testing::TrialCase& trial : testing::zoo_trials(GetParam(), 3)) {
    const auto precision =
        number++ % 2 == 0 ? CusparsePrecision::float32 : CusparsePrecision::tensor;
    const auto spmm = number % 3 == 0 ? CusparseSpmm::alg2 : CusparseSpmm::alg3;
    testing::TrialChoice choice = trial.choice;
    choice.wants_out_low = false;
    ASSERT_EQ(check_by_cusparse(*trial.mask, trial.heads, choice,
                                options_of(precision, number % 4 == 0, spmm)),
              "");
  }
}

// 2,048 tokens, every row: both ways are within their bounds of float64, and of each other.
TEST_P(CusparseZooOnGpu, AgreesWithTheAttentionKernel) {
  const zoo::ZooMask zoo_mask = zoo::mask_zoo(2048)[static_cast<std::size_t>(GetParam())];
  const MaskCase mask = testing::compiled_case(zoo_mask, kBlock);
  TrialChoice choice;
  choice.rows_per_head = 32;
  GpuMachine kernel;
  CusparseMachine library(mask, options_of(CusparsePrecision::float32));
  const TrialHeads heads{2, 4, 2};
  AttentionTrial by_kernel(kernel, mask, heads, choice), by_library(library, mask, heads, choice);
  for (AttentionTrial* trial : {&by_kernel, &by_library}) {
    const auto ran = trial->run();
    ASSERT_TRUE(ran) << ran.error().message;
    ASSERT_EQ(trial->check(), "");
  }
  double largest = 0, out_difference = 0, lse_difference = 0;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t row = 0; row < 2048; ++row) {
        const double lse = by_library.lse().get(b, row, h);
        if (lse == -INFINITY) {
          ASSERT_EQ(by_kernel.lse().get(b, row, h), -INFINITY) << b << " " << h << " " << row;
          continue;
        }
        lse_difference = std::fmax(lse_difference, std::fabs(by_kernel.lse().get(b, row, h) - lse));
        for (std::int64_t d = 0; d < 128; ++d) {
          const double out = by_library.out().get(b, row, h, d);
          largest = std::fmax(largest, std::fabs(out));
          out_difference =
              std::fmax(out_difference, std::fabs(by_kernel.out().get(b, row, h, d) - out));
        }
      }
    }
  }
  EXPECT_LE(lse_difference, 1e-4);
  EXPECT_LE(out_difference, largest / 128) << "two roundings to bfloat16";
}

INSTANTIATE_TEST_SUITE_P(Zoo, CusparseZooOnGpu, ::testing::Range(0, testing::kNumZooMasks),
                         [](const auto& index) { return testing::zoo_name(index.param); });

TEST_F(CusparseOnGpu, TakesEveryTypeAndHeadSize) {
  std::mt19937 rng(3);
  int number = 0;
  for (const std::int32_t head_dim : {1, 8, 20, 64, 80, 112, 192, 256}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const MaskCase mask = testing::random_case(rng, 2, 2, 150, kBlock);
      TrialChoice choice;
      choice.dtype = dtype;
      choice.head_dim = head_dim;
      choice.layout = static_cast<testing::Layout>(number % 3);
      choice.has_bias = number % 2 == 0;
      choice.softmax_scale = number % 5 == 1 ? -0.3F : 0;
      choice.seed = static_cast<std::uint64_t>(++number);
      for (const auto precision : {CusparsePrecision::float32, CusparsePrecision::tensor}) {
        for (const auto spmm : {CusparseSpmm::alg2, CusparseSpmm::alg3}) {
          ASSERT_EQ(
              check_by_cusparse(mask, {2, 2, 1 + number % 2}, choice,
                                options_of(precision, number % 3 == 0, spmm), ReferenceOn::host),
              "")
              << "alg" << static_cast<int>(spmm) + 1;
        }
      }
    }
  }
}

TEST_F(CusparseOnGpu, IsAccurateByEveryAlgorithm) {
  std::mt19937 rng(5);
  for (int trial = 0; trial < 4; ++trial) {
    const MaskCase mask = testing::random_case(rng, 2, 2, 600, kBlock);
    for (const auto spmm : {CusparseSpmm::alg1, CusparseSpmm::alg2, CusparseSpmm::alg3}) {
      for (const auto precision : {CusparsePrecision::float32, CusparsePrecision::tensor}) {
        for (const DType dtype : {DType::bfloat16, DType::float16}) {
          TrialChoice choice;
          choice.dtype = dtype;
          choice.layout = static_cast<testing::Layout>(trial % 3);
          choice.seed = static_cast<std::uint64_t>(trial) + 1;
          ASSERT_EQ(
              check_by_cusparse(mask, {2, 2, 2}, choice, options_of(precision, trial == 3, spmm)),
              "")
              << "alg" << static_cast<int>(spmm) + 1;
        }
      }
    }
  }
}

TEST_F(CusparseOnGpu, HasTheSameBitsEveryRunByAlg3) {
  std::mt19937 rng(9);
  const MaskCase mask = testing::block_sparse_case(rng, 1500, 1800, 0.3, 0.3);
  for (const auto precision : {CusparsePrecision::float32, CusparsePrecision::tensor}) {
    CusparseMachine machine(mask, options_of(precision, false, CusparseSpmm::alg3));
    AttentionTrial trial(machine, mask, {1, 4, 2}, {});
    std::vector<unsigned char> first;
    for (int run = 0; run < 5; ++run) {
      const auto ran = trial.run();
      ASSERT_TRUE(ran) << ran.error().message;
      if (run == 0) first = trial.result_bytes();
      ASSERT_EQ(trial.result_bytes(), first) << run;
    }
  }
}

TEST_F(CusparseOnGpu, TakesAMaskForEachHead) {
  std::mt19937 rng(12);
  for (int trial = 0; trial < 4; ++trial) {
    std::vector<MaskCase> masks;
    for (int h = 0; h < 8; ++h)
      masks.push_back(testing::block_sparse_case(rng, 700, 900, 0.06 * trial, 0.1));
    const MaskCase mask =
        testing::combined(fmt::format("block-sparse {}", trial), 1, 8, masks, kBlock);
    TrialChoice choice;
    choice.seed = static_cast<std::uint64_t>(trial) + 1;
    choice.rows_per_head = 200;
    EXPECT_EQ(check_by_cusparse(mask, {1, 8, 2}, choice,
                                options_of(trial % 2 == 0 ? CusparsePrecision::float32
                                                          : CusparsePrecision::tensor)),
              "");
  }
}

TEST_F(CusparseOnGpu, LeavesRowsWithoutKeysAtZero) {
  const auto some = [](auto q, auto k) { return q % 5 == 3 && k % 2 == 0; };
  const auto none = [](auto, auto) { return false; };
  for (const Cells& cells :
       {testing::make_cells(300, 200, some), testing::make_cells(130, 140, none)}) {
    const MaskCase mask = testing::case_of("rows without keys", cells, kBlock);
    for (const auto precision : {CusparsePrecision::float32, CusparsePrecision::tensor}) {
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        TrialChoice choice;
        choice.dtype = dtype;
        choice.layout = testing::Layout::padded;
        EXPECT_EQ(check_by_cusparse(mask, {2, 2, 1}, choice, options_of(precision)), "");
      }
    }
  }
}

// Keys with a bias of -inf are masked; rows that have only those are rows without keys.
TEST_F(CusparseOnGpu, TakesABiasOfMinusInfinityForAMask) {
  const MaskCase mask = testing::case_of(
      "halves", testing::make_cells(140, 500, [](auto q, auto k) { return (k < 250) == (q < 70); }),
      kBlock);
  CusparseMachine machine(mask, options_of(CusparsePrecision::float32));
  TrialChoice choice;
  choice.has_bias = true;
  AttentionTrial trial(machine, mask, {1, 2, 1}, choice);
  for (std::int64_t k = 0; k < 350; ++k) {
    if (k < 250 || k % 2 == 0) trial.bias().set(0, k, 0, 0, -INFINITY);
  }
  trial.bias().upload();
  const auto ran = trial.run();
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(trial.check(), "");
  EXPECT_EQ(trial.lse().get(0, 69, 0), -INFINITY);
  EXPECT_GT(trial.lse().get(0, 70, 0), -INFINITY);
}

TEST_F(CusparseOnGpu, RejectsWhatDoesNotFit) {
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(150, 200, [](auto q, auto k) { return k <= q; }), kBlock);
  AttentionShape shape = testing::shape_for(mask.mask, 1, 2, 1);
  ScoreSpec score{ScoreKind::softcap};
  auto made = CusparseAttention::make(mask.mask, shape, score);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::unsupported) << made.error().message;
  shape.kv_lens = {201};
  made = CusparseAttention::make(mask.mask, shape);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::shape_mismatch) << made.error().message;

  TrialChoice choice;
  choice.has_bias = true;
  CusparseMachine machine(mask, {});
  const AttentionTrial trial(machine, mask, {1, 2, 1}, choice);
  const auto with_tensors = [&](const char* named, ErrorCode code, auto&& change) {
    AttentionTensors tensors = trial.tensors();
    change(tensors);
    const auto ran = machine.forward(trial.plan(), tensors, {});
    ASSERT_FALSE(ran) << named;
    EXPECT_EQ(ran.error().code, code) << ran.error().message;
    EXPECT_THAT(ran.error().message, HasSubstr(named));
  };
  with_tensors("q", ErrorCode::unsupported, [](auto& t) { t.q.device = Device::cpu; });
  with_tensors("v", ErrorCode::shape_mismatch, [](auto& t) { t.kv.v.dtype = DType::float32; });
  with_tensors("key_bias", ErrorCode::invalid_argument, [](auto& t) { t.key_bias = {}; });
  with_tensors("out_low", ErrorCode::unsupported, [](auto& t) { t.out_low = t.out; });
}

}  // namespace
}  // namespace fdma
