// Attention by cuSPARSE against float64 and against the attention kernel. The two share no code
// except the rows of the mask. If the library is not found, the tests skip; the environment
// variable FDMA_CUSPARSE names it.
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

using gpu_test::GpuFixture;
using gpu_test::ReferenceOn;
using gpu_test::require;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::Cells;
using ::testing::HasSubstr;
using testing::MaskCase;

constexpr BlockShape kBlock{128, 128};

// Runs attention cases by cuSPARSE. Only the shape and score of a case's plan are used. It is a
// plan for the CPU, which takes every type and head size.
class CusparseFixture : public GpuFixture {
 public:
  CusparseFixture(const MaskCase& mask, CusparseOptions options,
                  ReferenceOn reference = ReferenceOn::device)
      : GpuFixture(reference), mask_(mask), options_(std::move(options)) {}

  Backend backend() const override { return Backend::cpu; }
  Result<void> forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                       const AttentionOptions& options) override {
    FDMA_TRY(CusparseAttention attention,
             CusparseAttention::make(mask_.mask, plan.shape, plan.score, options_));
    for (int i = 0; i < 2; ++i) {  // the second run reuses the buffers of the first
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

class CusparseMaskSuiteOnGpu : public CusparseOnGpu, public ::testing::WithParamInterface<int> {};

CusparseOptions options_of(CusparsePrecision precision, bool has_wide_indices = false,
                           CusparseSpmm spmm = CusparseSpmm::alg3) {
  CusparseOptions options;
  options.precision = precision;
  options.spmm = spmm;
  options.has_wide_indices = has_wide_indices;
  return options;
}

std::string check_by_cusparse(const MaskCase& mask, const CaseHeads& heads,
                              const CaseChoice& choice, const CusparseOptions& options,
                              ReferenceOn reference = ReferenceOn::device) {
  CusparseFixture fixture(mask, options, reference);
  const std::string wrong = testing::check_case(fixture, mask, heads, choice);
  if (wrong.empty()) return wrong;
  return wrong + (options.precision == CusparsePrecision::tensor ? " in the tensors' types"
                                                                 : " in float32");
}

TEST_P(CusparseMaskSuiteOnGpu, IsAsAccurateAsAnExplicitProduct) {
  int number = 0;
  for (const testing::BackendCase& test_case : testing::mask_suite_cases(GetParam(), 3)) {
    const auto precision =
        number++ % 2 == 0 ? CusparsePrecision::float32 : CusparsePrecision::tensor;
    const auto spmm = number % 3 == 0 ? CusparseSpmm::alg2 : CusparseSpmm::alg3;
    testing::CaseChoice choice = test_case.choice;
    choice.wants_out_low = false;
    choice.softcap = 0;  // not computed by cuSPARSE
    ASSERT_EQ(check_by_cusparse(*test_case.mask, test_case.heads, choice,
                                options_of(precision, number % 4 == 0, spmm)),
              "");
  }
}

// Every row of 2,048 tokens. Both results are within their bounds of float64, and of each other.
TEST_P(CusparseMaskSuiteOnGpu, AgreesWithTheAttentionKernel) {
  const suite::SuiteMask suite_mask = suite::mask_suite(2048)[static_cast<std::size_t>(GetParam())];
  const MaskCase mask = testing::compiled_case(suite_mask, kBlock);
  CaseChoice choice;
  choice.rows_per_head = 32;
  GpuFixture kernel;
  CusparseFixture library(mask, options_of(CusparsePrecision::float32));
  const CaseHeads heads{2, 4, 2};
  BackendAttentionCase by_kernel(kernel, mask, heads, choice),
      by_library(library, mask, heads, choice);
  for (BackendAttentionCase* test_case : {&by_kernel, &by_library}) {
    const auto ran = test_case->run();
    ASSERT_TRUE(ran) << ran.error().message;
    ASSERT_EQ(test_case->check(), "");
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

INSTANTIATE_TEST_SUITE_P(MaskSuite, CusparseMaskSuiteOnGpu,
                         ::testing::Range(0, testing::kNumSuiteMasks),
                         [](const auto& index) { return testing::suite_name(index.param); });

TEST_F(CusparseOnGpu, TakesEveryTypeAndHeadSize) {
  std::mt19937 rng(3);
  int number = 0;
  for (const std::int32_t head_dim : {1, 8, 20, 64, 80, 112, 192, 256}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const MaskCase mask = testing::random_case(rng, 2, 2, 150, kBlock);
      CaseChoice choice;
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
  for (int test_case = 0; test_case < 4; ++test_case) {
    const MaskCase mask = testing::random_case(rng, 2, 2, 600, kBlock);
    for (const auto spmm : {CusparseSpmm::alg1, CusparseSpmm::alg2, CusparseSpmm::alg3}) {
      for (const auto precision : {CusparsePrecision::float32, CusparsePrecision::tensor}) {
        for (const DType dtype : {DType::bfloat16, DType::float16}) {
          CaseChoice choice;
          choice.dtype = dtype;
          choice.layout = static_cast<testing::Layout>(test_case % 3);
          choice.seed = static_cast<std::uint64_t>(test_case) + 1;
          ASSERT_EQ(check_by_cusparse(mask, {2, 2, 2}, choice,
                                      options_of(precision, test_case == 3, spmm)),
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
    CusparseFixture fixture(mask, options_of(precision, false, CusparseSpmm::alg3));
    BackendAttentionCase test_case(fixture, mask, {1, 4, 2}, {});
    std::vector<unsigned char> first;
    for (int run = 0; run < 5; ++run) {
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << ran.error().message;
      if (run == 0) first = test_case.result_bytes();
      ASSERT_EQ(test_case.result_bytes(), first) << run;
    }
  }
}

TEST_F(CusparseOnGpu, TakesAMaskForEachHead) {
  std::mt19937 rng(12);
  for (int test_case = 0; test_case < 4; ++test_case) {
    std::vector<MaskCase> masks;
    for (int h = 0; h < 8; ++h)
      masks.push_back(testing::block_sparse_case(rng, 700, 900, 0.06 * test_case, 0.1));
    const MaskCase mask =
        testing::combined(fmt::format("block-sparse {}", test_case), 1, 8, masks, kBlock);
    CaseChoice choice;
    choice.seed = static_cast<std::uint64_t>(test_case) + 1;
    choice.rows_per_head = 200;
    EXPECT_EQ(check_by_cusparse(mask, {1, 8, 2}, choice,
                                options_of(test_case % 2 == 0 ? CusparsePrecision::float32
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
        CaseChoice choice;
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
  CusparseFixture fixture(mask, options_of(CusparsePrecision::float32));
  CaseChoice choice;
  choice.has_bias = true;
  BackendAttentionCase test_case(fixture, mask, {1, 2, 1}, choice);
  for (std::int64_t k = 0; k < 350; ++k) {
    if (k < 250 || k % 2 == 0) test_case.bias().set(0, k, 0, 0, -INFINITY);
  }
  test_case.bias().upload();
  const auto ran = test_case.run();
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(test_case.check(), "");
  EXPECT_EQ(test_case.lse().get(0, 69, 0), -INFINITY);
  EXPECT_GT(test_case.lse().get(0, 70, 0), -INFINITY);
}

TEST_F(CusparseOnGpu, RejectsWhatDoesNotFit) {
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(150, 200, [](auto q, auto k) { return k <= q; }), kBlock);
  AttentionShape shape = testing::shape_for(mask.mask, 1, 2, 1);
  ScoreSpec score{.softcap = true};
  auto made = CusparseAttention::make(mask.mask, shape, score);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::unsupported) << made.error().message;
  shape.kv_lens = {201};
  made = CusparseAttention::make(mask.mask, shape);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::shape_mismatch) << made.error().message;

  CaseChoice choice;
  choice.has_bias = true;
  CusparseFixture fixture(mask, {});
  const BackendAttentionCase test_case(fixture, mask, {1, 2, 1}, choice);
  const auto with_tensors = [&](const char* named, ErrorCode code, auto&& change) {
    AttentionTensors tensors = test_case.tensors();
    change(tensors);
    const auto ran = fixture.forward(test_case.plan(), tensors, {});
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
