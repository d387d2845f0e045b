// ZOH scores on the GPU against their formula in float64, within the bound that zoh_scores.hpp
// states, and against those of the host.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fdma/kernels/zoh_device.hpp"
#include "selection/zoh_device_tensor.hpp"

namespace fdma {
namespace {

using gpu_test::GuardedBytes;
using gpu_test::make_tensor;
using gpu_test::store;
using gpu_test::Tensor;
using gpu_test::upload;
using testing::HasSubstr;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Scores {
  std::vector<std::int64_t> extents;
  GuardedBytes device;
  explicit Scores(const Tensor& values)
      : extents{values.extents[0], values.extents[2], values.extents[1]},
        device(static_cast<std::size_t>(extents[0] * extents[1] * extents[2]) * sizeof(float)) {}
  MutableTensorView view() const {
    MutableTensorView result =
        make_contiguous_mutable_view(device.as<void>(), DType::float32, 3, extents.data());
    result.device = Device::cuda;
    return result;
  }
  std::vector<float> to_host() const {
    const std::vector<std::uint8_t> bytes = device.to_host();
    std::vector<float> scores(bytes.size() / sizeof(float));
    std::memcpy(scores.data(), bytes.data(), bytes.size());
    return scores;
  }
};

struct Expected {
  double score;
  double tolerance;
};

// The formula of the header in float64, and its bound.
Expected expected_score(const Tensor& values, const Tensor& dt_proj, const Tensor& a_coef,
                        std::int64_t b, std::int64_t h, std::int64_t k, ZohMode mode) {
  const std::int64_t kv_len = values.extents[1], heads = values.extents[2], dim = values.extents[3];
  const std::int64_t terms = dt_proj.extents[1];
  const bool is_per_head = terms == dim;
  const double* row =
      values.exact.data() + ((b * kv_len + k) * heads + (is_per_head ? h : 0)) * dim;
  const double* weights = dt_proj.exact.data() + h * terms;
  double dt = 0, magnitude = 0;
  for (std::int64_t i = 0; i < terms; ++i) {
    dt += row[i] * weights[i];
    magnitude += std::abs(row[i] * weights[i]);
  }
  const double a = a_coef.exact[static_cast<std::size_t>(h)];
  const double softplus = std::max(dt, 0.0) + std::log1p(std::exp(-std::abs(dt)));
  const double log = softplus * a;
  constexpr double kUnit = 0x1p-24;
  const double log_error = std::abs(a) * (static_cast<double>(terms) / 4 + 8) * kUnit * magnitude +
                           8 * kUnit * std::abs(log);
  if (mode == ZohMode::log) return {log, log_error + 1e-44};
  const double score = std::exp(log);
  return {score, score * (std::expm1(log_error) + 8 * kUnit) + 1e-44};
}

void expect_scores(const Tensor& values, const Tensor& dt_proj, const Tensor& a_coef) {
  for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
    const Scores scores(values);
    const Result<void> done =
        zoh_scores(values.view(), dt_proj.view(), a_coef.view(), scores.view(), mode, nullptr);
    ASSERT_TRUE(done) << done.error().message;
    const std::vector<float> got = scores.to_host();
    std::size_t i = 0;
    for (std::int64_t b = 0; b < scores.extents[0]; ++b) {
      for (std::int64_t h = 0; h < scores.extents[1]; ++h) {
        for (std::int64_t k = 0; k < scores.extents[2]; ++k, ++i) {
          const Expected expected = expected_score(values, dt_proj, a_coef, b, h, k, mode);
          ASSERT_NEAR(got[i], expected.score, expected.tolerance)
              << "b " << b << " h " << h << " k " << k << " mode " << to_string(mode);
        }
      }
    }
  }
}

TEST(DeviceZohScores, EveryDtypeAndShape) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(1);
  constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};
  for (const DType dtype : kDTypes) {
    for (const DType weight_dtype : kDTypes) {
      for (const std::int64_t dim : {1, 8, 24, 32, 64, 80, 100, 128, 256, 264, 520}) {
        for (const std::int64_t heads : {1, 2, 8, 12, 40}) {
          const std::int64_t kv_len = dim > 128 ? 41 : 77;
          SCOPED_TRACE(testing::Message() << to_string(dtype) << " " << to_string(weight_dtype)
                                          << " head_dim " << dim << " heads " << heads);
          const Tensor values = make_tensor(dtype, {2, kv_len, heads, dim}, random);
          const Tensor a_coef = make_tensor(weight_dtype, {heads}, random);
          const double scale = 1 / std::sqrt(static_cast<double>(dim));
          expect_scores(values, make_tensor(weight_dtype, {heads, dim}, random, scale), a_coef);
          // The sums of all dtypes in float64 take their time: wide rows for some.
          if (heads > 1 && heads * dim <= 1100) {
            expect_scores(values, make_tensor(weight_dtype, {heads, heads * dim}, random, scale),
                          a_coef);
          }
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DeviceZohScores, LongerThanOneUnit) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(2);
  const Tensor values = make_tensor(DType::bfloat16, {1, 20011, 8, 64}, random);
  const Tensor a_coef = make_tensor(DType::float32, {8}, random);
  expect_scores(values, make_tensor(DType::bfloat16, {8, 64}, random), a_coef);
  expect_scores(values, make_tensor(DType::bfloat16, {8, 512}, random, 0.1), a_coef);
}

// Units go from one batch element to the next, or past several.
TEST(DeviceZohScores, ManyBatchElements) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(3);
  for (const auto& [batches, kv_len, heads] :
       {std::array<std::int64_t, 3>{37, 531, 8}, {23, 1024, 5}, {9001, 8, 2}, {20000, 3, 1}}) {
    SCOPED_TRACE(testing::Message() << batches << " of " << kv_len << ", heads " << heads);
    const Tensor values = make_tensor(DType::bfloat16, {batches, kv_len, heads, 64}, random);
    const Tensor a_coef = make_tensor(DType::float32, {heads}, random);
    expect_scores(values, make_tensor(DType::bfloat16, {heads, 64}, random), a_coef);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// So many that the wide dt_proj is that of many keys (zoh_scores.cu), for 16 bits.
TEST(DeviceZohScores, WideOfManyKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(10);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    for (const auto& [heads, dim] : {std::pair{3, 24}, {8, 8}, {12, 40}, {20, 8}, {40, 8}}) {
      SCOPED_TRACE(testing::Message() << to_string(dtype) << " " << heads << " " << dim);
      const Tensor values = make_tensor(dtype, {3, 2750, heads, dim}, random);
      const Tensor a_coef = make_tensor(DType::float32, {heads}, random);
      expect_scores(values, make_tensor(dtype, {heads, heads * dim}, random, 0.1), a_coef);
    }
  }
}

// Slices of larger tensors: with 16-byte rows and without.
TEST(DeviceZohScores, Strides) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(3);
  for (const std::int64_t offset : {0, 8, 3}) {
    const Tensor all = make_tensor(DType::bfloat16, {2, 50, 6, 96}, random);
    TensorView view = all.view();
    view.data = static_cast<const std::uint16_t*>(view.data) + 6 * 96 * 2 + 2 * 96 + offset;
    view.extents = {2, 48, 3, 64};
    Tensor values{DType::bfloat16, {2, 48, 3, 64}, {}, {}, nullptr};
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t k = 0; k < 48; ++k) {
        for (std::int64_t h = 0; h < 3; ++h) {
          for (std::int64_t d = 0; d < 64; ++d) {
            values.exact.push_back(all.exact[static_cast<std::size_t>(
                ((b * 50 + k + 2) * 6 + h + 2) * 96 + d + offset)]);
          }
        }
      }
    }
    const Tensor a_coef = make_tensor(DType::float32, {3}, random);
    for (const std::int64_t width : {64, 192}) {
      const Tensor dt_proj = make_tensor(DType::bfloat16, {3, width}, random, 0.2);
      const Scores scores(values);
      MutableTensorView out =
          scores.view();  // [batch, kv_len, heads], with the keys contiguous in memory
      out.strides = {3 * 48, 1, 3, 0};
      ASSERT_TRUE(zoh_scores(view, dt_proj.view(), a_coef.view(), out, ZohMode::log, nullptr));
      const std::vector<float> got = scores.to_host();
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 3; ++h) {
          for (std::int64_t k = 0; k < 48; ++k) {
            const Expected expected =
                expected_score(values, dt_proj, a_coef, b, h, k, ZohMode::log);
            ASSERT_NEAR(got[static_cast<std::size_t>(b * 144 + k * 3 + h)], expected.score,
                        expected.tolerance)
                << offset << " " << width << " " << b << " " << h << " " << k;
          }
        }
      }
    }
  }
}

TEST(DeviceZohScores, CloseToTheHost) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(4);
  const Tensor values = make_tensor(DType::bfloat16, {1, 1000, 4, 128}, random);
  const Tensor dt_proj = make_tensor(DType::float32, {4, 128}, random, 0.1);
  const Tensor a_coef = make_tensor(DType::float32, {4}, random);
  const Scores scores(values);
  ASSERT_TRUE(zoh_scores(values.view(), dt_proj.view(), a_coef.view(), scores.view(), ZohMode::exp,
                         nullptr));
  std::vector<float> host(4000);
  ASSERT_TRUE(zoh_scores(
      values.host_view(), dt_proj.host_view(), a_coef.host_view(),
      make_contiguous_mutable_view(host.data(), DType::float32, 3, scores.extents.data())));
  const std::vector<float> got = scores.to_host();
  for (std::size_t i = 0; i < host.size(); ++i) ASSERT_NEAR(got[i] / host[i], 1, 1e-5) << i;
}

TEST(DeviceZohScores, ExtremesAndWhatIsNotFinite) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(5);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    Tensor values = make_tensor(dtype, {1, 8, 1, 64}, random, 0);
    Tensor dt_proj = make_tensor(dtype, {1, 64}, random, 0);
    Tensor a_coef = make_tensor(DType::float32, {1}, random);
    store(dt_proj, 0, 1);
    store(a_coef, 0, -1);
    const std::vector<float> dts{0, 2048, -2048, 60, -60, kInfinity, -kInfinity, std::nanf("")};
    for (std::size_t k = 0; k < dts.size(); ++k) store(values, 64 * k, dts[k]);
    upload(values);
    upload(dt_proj);
    upload(a_coef);
    const Scores scores(values);
    ASSERT_TRUE(zoh_scores(values.view(), dt_proj.view(), a_coef.view(), scores.view(),
                           ZohMode::log, nullptr));
    std::vector<float> got = scores.to_host();
    EXPECT_NEAR(got[0], -std::log(2.0), 1e-6);
    EXPECT_EQ(got[1], -2048);
    EXPECT_EQ(got[2], 0);
    EXPECT_EQ(got[3], -60);
    EXPECT_NEAR(got[4] / -std::exp(-60.0), 1, 1e-5);
    EXPECT_EQ(got[5], -kInfinity);
    EXPECT_EQ(got[6], 0);
    EXPECT_TRUE(std::isnan(got[7]));
    ASSERT_TRUE(zoh_scores(values.view(), dt_proj.view(), a_coef.view(), scores.view(),
                           ZohMode::exp, nullptr));
    got = scores.to_host();
    EXPECT_NEAR(got[0], 0.5, 1e-6);
    EXPECT_EQ(got[1], 0);
    EXPECT_EQ(got[2], 1);
    EXPECT_EQ(got[5], 0);
    EXPECT_EQ(got[6], 1);
    EXPECT_TRUE(std::isnan(got[7]));
  }
}

/// float32 with all 24 bits of their significands.
Tensor make_float_tensor(std::vector<std::int64_t> extents, std::mt19937& random, float scale) {
  Tensor tensor = make_tensor(DType::float32, std::move(extents), random, 0);
  std::normal_distribution<float> normal(0, scale);
  for (std::size_t i = 0; i < tensor.exact.size(); ++i) store(tensor, i, normal(random));
  upload(tensor);
  return tensor;
}

// Tensor cores take 11 bits of a float32 at a time. No other bit may be lost, and infinite and huge
// values must not become NaN.
TEST(DeviceZohScores, WideFloat32HasAllItsBits) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(7);
  for (const auto& [kv_len, heads, dim] : std::vector<std::array<std::int64_t, 3>>{
           {77, 2, 64}, {40001, 3, 12}, {500, 12, 36}, {300, 20, 128}, {50, 40, 8}}) {
    SCOPED_TRACE(testing::Message() << kv_len << " " << heads << " " << dim);
    const Tensor values = make_float_tensor({1, kv_len, heads, dim}, random, 1);
    const Tensor dt_proj = make_float_tensor({heads, heads * dim}, random, 0.1F);
    Tensor a_coef = make_tensor(DType::float32, {heads}, random, 0);
    for (std::size_t h = 0; h < a_coef.exact.size(); ++h) store(a_coef, h, 1);
    upload(a_coef);
    expect_scores(values, dt_proj, a_coef);
    const Scores scores(values);
    ASSERT_TRUE(zoh_scores(values.view(), dt_proj.view(), a_coef.view(), scores.view(),
                           ZohMode::log, nullptr));
    const std::vector<float> got = scores.to_host();
    const std::int64_t width = heads * dim, step = std::max<std::int64_t>(kv_len / 500, 1);
    for (std::int64_t k = 0; k < kv_len; k += step) {
      for (std::int64_t h = 0; h < heads; ++h) {
        double magnitude = 0;
        for (std::int64_t i = 0; i < width; ++i) {
          magnitude += std::abs(values.exact[static_cast<std::size_t>(k * width + i)] *
                                dt_proj.exact[static_cast<std::size_t>(h * width + i)]);
        }
        const Expected expected = expected_score(values, dt_proj, a_coef, 0, h, k, ZohMode::log);
        ASSERT_NEAR(got[static_cast<std::size_t>(h * kv_len + k)], expected.score,
                    0x1p-24 * (8 * magnitude + 8 * std::abs(expected.score)))
            << k << " " << h;
      }
    }
  }
}

TEST(DeviceZohScores, WideOfWhatIsNotFinite) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(8);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    Tensor values = make_tensor(dtype, {1, 300, 2, 64}, random, 0);
    Tensor dt_proj = make_tensor(dtype, {2, 128}, random, 0);
    Tensor a_coef = make_tensor(DType::float32, {2}, random, 0);
    for (std::size_t i = 0; i < 64; ++i) store(dt_proj, i, 1);  // 0 in the second half
    for (std::size_t i = 128; i < 256; ++i) store(dt_proj, i, 0x1p-8F);
    for (std::size_t h = 0; h < 2; ++h) store(a_coef, h, 1);
    const float huge = dtype == DType::float16 ? 0x1p15F : 0x1p127F;
    const auto put = [&](std::size_t key, std::size_t at, float x) {
      store(values, key * 128 + at, x);
    };
    put(0, 5, kInfinity);
    put(1, 127, kInfinity);
    put(2, 63, -kInfinity);
    put(3, 64, std::nanf(""));
    put(4, 1, kInfinity);
    put(4, 2, -kInfinity);
    put(299, 0, kInfinity);
    put(298, 0, huge);
    put(297, 127, std::bit_cast<float>(0xFFFFFFFFu));  // NaN
    if (dtype == DType::float32) {
      put(5, 0, std::numeric_limits<float>::max());  // rounds to infinity
      for (std::size_t i = 0; i < 4; ++i) put(6, i, huge);
    }
    upload(values);
    upload(dt_proj);
    upload(a_coef);
    const Scores scores(values);
    ASSERT_TRUE(zoh_scores(values.view(), dt_proj.view(), a_coef.view(), scores.view(),
                           ZohMode::log, nullptr));
    const std::vector<float> got = scores.to_host();
    const float* const second = got.data() + 300;
    EXPECT_EQ(got[0], kInfinity);
    EXPECT_EQ(second[0], kInfinity);
    EXPECT_TRUE(std::isnan(got[1]));  // 0 * inf
    EXPECT_EQ(second[1], kInfinity);
    EXPECT_EQ(got[2], 0);
    EXPECT_EQ(second[2], 0);
    EXPECT_TRUE(std::isnan(got[3]) && std::isnan(second[3]));
    EXPECT_TRUE(std::isnan(got[4]) && std::isnan(second[4]));
    EXPECT_EQ(got[299], kInfinity);
    EXPECT_EQ(got[298], huge);
    EXPECT_EQ(second[298], huge * 0x1p-8F);
    EXPECT_TRUE(std::isnan(got[297]) && std::isnan(second[297]));
    if (dtype == DType::float32) {
      EXPECT_EQ(got[5], std::numeric_limits<float>::max());
      EXPECT_EQ(second[5], std::numeric_limits<float>::max() * 0x1p-8F);
      EXPECT_EQ(got[6], kInfinity);
      EXPECT_EQ(second[6], 0x1p121F);
    }
    for (std::size_t k = 7; k < 297; ++k) {
      EXPECT_NEAR(got[k], std::log(2.0), 1e-6) << k;
      EXPECT_NEAR(second[k], std::log(2.0), 1e-6) << k;
    }
  }
}

// Chunks of a prompt give the same scores as the whole prompt. In zoh_wide.cu a score depends
// neither on kv_len nor on the place of its key.
TEST(DeviceZohScores, WideScoresDoNotDependOnTheLength) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(9);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    constexpr std::int64_t kKeys = 20000, kFirst = 1234;
    const std::int64_t count = dtype == DType::float32 ? 321 : 9000;
    const Tensor values = make_tensor(dtype, {1, kKeys, 4, 32}, random);
    const Tensor dt_proj = make_tensor(dtype, {4, 128}, random, 0.1);
    const Tensor a_coef = make_tensor(DType::float32, {4}, random);
    const Scores scores(values);
    const auto run = [&](const TensorView& view, const MutableTensorView& out) {
      return zoh_scores(view, dt_proj.view(), a_coef.view(), out, ZohMode::exp, nullptr);
    };
    ASSERT_TRUE(run(values.view(), scores.view()));
    const std::vector<float> all = scores.to_host();
    TensorView chunk = values.view();
    chunk.data = static_cast<const std::uint8_t*>(chunk.data) + kFirst * 128 * size_bytes(dtype);
    chunk.extents[1] = count;
    MutableTensorView out = scores.view();
    out.extents[2] = count;
    ASSERT_TRUE(run(chunk, out));
    const std::vector<float> got = scores.to_host();
    for (std::size_t h = 0; h < 4; ++h) {
      for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
        ASSERT_EQ(got[h * kKeys + k], all[h * kKeys + k + kFirst]) << h << " " << k;
      }
    }
  }
}

TEST(DeviceZohScores, RejectsTensorsOnTheHost) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(6);
  const Tensor values = make_tensor(DType::float32, {1, 8, 2, 64}, random);
  const Tensor dt_proj = make_tensor(DType::float32, {2, 64}, random);
  const Tensor a_coef = make_tensor(DType::float32, {2}, random);
  const Scores scores(values);
  const auto error = [&](const TensorView& v, const TensorView& w, const TensorView& a,
                         const MutableTensorView& s) {
    const Result<void> result = zoh_scores(v, w, a, s, ZohMode::exp, nullptr);
    return result ? std::string("none") : result.error().message;
  };
  EXPECT_THAT(error(values.host_view(), dt_proj.view(), a_coef.view(), scores.view()),
              HasSubstr("expected the device of values"));
  EXPECT_THAT(error(values.host_view(), dt_proj.host_view(), a_coef.host_view(), scores.view()),
              HasSubstr("values: on the host"));
  MutableTensorView out = scores.view();
  out.device = Device::cpu;
  EXPECT_THAT(error(values.view(), dt_proj.view(), a_coef.view(), out),
              HasSubstr("scores: on the host"));
  out = scores.view();
  out.extents[2] = 7;
  EXPECT_THAT(error(values.view(), dt_proj.view(), a_coef.view(), out),
              HasSubstr("expected [batch, heads_kv, kv_len] = [1, 2, 8], got [1, 2, 7]"));
  EXPECT_EQ(error(values.view(), dt_proj.view(), a_coef.view(), scores.view()), "none");
}

}  // namespace
}  // namespace fdma
