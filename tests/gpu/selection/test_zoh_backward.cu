// Gradients of ZOH scores on the GPU against float64, within the bound that zoh_backward.hpp
// states, in guarded memory. The file is long since each kernel has its own shapes and strides.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "fdma/kernels/zoh_backward_device.hpp"
#include "selection/zoh_device_tensor.hpp"
#include "zoh_oracle.hpp"

namespace fdma {
namespace {

using gpu_test::GuardedBytes;
using gpu_test::make_tensor;
using gpu_test::require;
using gpu_test::store;
using gpu_test::Tensor;
using gpu_test::upload;
using select_test::Bounded;
using select_test::rounding_error;
using select_test::ZohProblem;
using testing::HasSubstr;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

struct Gradient {
  DType dtype;
  std::vector<std::int64_t> extents;
  std::size_t count;
  GuardedBytes device;

  Gradient(const Tensor& input, DType type)
      : dtype(type),
        extents(input.extents),
        count(input.exact.size()),
        device(count * static_cast<std::size_t>(size_bytes(type))) {}
  MutableTensorView view() const {
    MutableTensorView result = make_contiguous_mutable_view(
        device.as<void>(), dtype, static_cast<int>(extents.size()), extents.data());
    result.device = Device::cuda;
    return result;
  }
  std::vector<double> to_host() const {
    const std::vector<std::uint8_t> bytes = device.to_host();
    std::vector<double> numbers(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (dtype == DType::float32) {
        float x = 0;
        std::memcpy(&x, bytes.data() + 4 * i, 4);
        numbers[i] = x;
      } else {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * i, 2);
        numbers[i] = dtype == DType::float16 ? __half2float(__half_raw{bits})
                                             : __bfloat162float(__nv_bfloat16_raw{bits});
      }
    }
    return numbers;
  }
};

struct Inputs {
  Tensor values, dt_proj, a_coef, dscores;

  Inputs(const ZohShape& shape, DType dtype, DType weight_dtype, std::mt19937& random,
         double kept = 0.6)
      : values(make_tensor(
            dtype, {shape.num_batches, shape.kv_len, shape.num_heads_kv, shape.head_dim}, random)),
        dt_proj(make_tensor(
            weight_dtype,
            {shape.num_heads_kv, (shape.is_per_head ? 1 : shape.num_heads_kv) * shape.head_dim},
            random,
            1 / std::sqrt(static_cast<double>(shape.head_dim *
                                              (shape.is_per_head ? 1 : shape.num_heads_kv))))),
        a_coef(make_tensor(weight_dtype, {shape.num_heads_kv}, random)),
        dscores(make_tensor(DType::float32, {shape.num_batches, shape.num_heads_kv, shape.kv_len},
                            random)) {
    std::bernoulli_distribution is_kept(kept);
    for (std::size_t i = 0; i < dscores.exact.size(); ++i) {
      if (!is_kept(random)) store(dscores, i, 0);
    }
    upload(dscores);
  }
  ZohShape shape() const {
    return *zoh_shape(values.host_view(), dt_proj.host_view(), a_coef.host_view());
  }
  ZohBackwardTensors tensors() const {
    ZohBackwardTensors result;
    result.values = values.view();
    result.dt_proj = dt_proj.view();
    result.a_coef = a_coef.view();
    result.dscores = dscores.view();
    return result;
  }
  ZohProblem problem(ZohMode mode) const {
    return {shape(), mode, values.exact, dt_proj.exact, a_coef.exact, dscores.exact};
  }
};

struct Outputs {
  Gradient dvalues, ddt_proj, da_coef;
  GuardedBytes workspace;

  explicit Outputs(const Inputs& inputs, bool in_float32 = false)
      : dvalues(inputs.values, in_float32 ? DType::float32 : inputs.values.dtype),
        ddt_proj(inputs.dt_proj, in_float32 ? DType::float32 : inputs.dt_proj.dtype),
        da_coef(inputs.a_coef, in_float32 ? DType::float32 : inputs.a_coef.dtype),
        workspace(static_cast<std::size_t>(zoh_backward_workspace_bytes(inputs.shape()))) {}
  Result<void> run(ZohBackwardTensors tensors, ZohMode mode, Stream stream = nullptr) {
    tensors.dvalues = dvalues.view();
    tensors.ddt_proj = ddt_proj.view();
    tensors.da_coef = da_coef.view();
    return zoh_scores_backward(tensors, mode, workspace.as<void>(), stream);
  }
  /// All bytes that were written. Checks all guards.
  std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> all = dvalues.device.to_host();
    for (const Gradient* gradient : {&ddt_proj, &da_coef}) {
      const std::vector<std::uint8_t> more = gradient->device.to_host();
      all.insert(all.end(), more.begin(), more.end());
    }
    workspace.to_host();
    return all;
  }
};

void expect_near(const Gradient& gradient, const Bounded& expected, const std::string& name) {
  const std::vector<double> got = gradient.to_host();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(
        got[i], expected.exact[i],
        expected.error[i] * 1.01 + rounding_error(expected.exact[i], gradient.dtype) + 1e-44)
        << name << "[" << i << "]";
  }
}

void expect_gradients(const Outputs& outputs, const Inputs& inputs, ZohMode mode,
                      const Tensor* other = nullptr) {
  auto expected = zoh_gradients(inputs.problem(mode));
  for (std::size_t i = 0; other != nullptr && i < other->exact.size(); ++i) {
    expected.dvalues.exact[i] += other->exact[i];
    expected.dvalues.error[i] += rounding_error(expected.dvalues.exact[i], DType::float32);
  }
  expect_near(outputs.dvalues, expected.dvalues, "dvalues");
  expect_near(outputs.ddt_proj, expected.ddt_proj, "ddt_proj");
  expect_near(outputs.da_coef, expected.da_coef, "da_coef");
  outputs.workspace.to_host();
}

// Checks each gradient alone, together with others, and in place. Repeated runs must give the same
// bits.
void check_case(const Inputs& inputs, ZohMode mode, bool in_float32, std::mt19937& random) {
  Outputs outputs(inputs, in_float32);
  const Result<void> done = outputs.run(inputs.tensors(), mode);
  ASSERT_TRUE(done) << done.error().message;
  expect_gradients(outputs, inputs, mode);
  if (testing::Test::HasFatalFailure()) return;
  Outputs again(inputs, in_float32);
  ASSERT_TRUE(again.run(inputs.tensors(), mode));
  EXPECT_EQ(again.bytes(), outputs.bytes());
  const Tensor other =
      make_tensor(in_float32 ? inputs.values.dtype : DType::float32, inputs.values.extents, random);
  ZohBackwardTensors tensors = inputs.tensors();
  tensors.other_dvalues = other.view();
  Outputs added(inputs, in_float32);
  ASSERT_TRUE(added.run(tensors, mode));
  expect_gradients(added, inputs, mode, &other);
  if (testing::Test::HasFatalFailure()) return;
  Outputs in_place(inputs, other.dtype == DType::float32);
  require(cudaMemcpy(in_place.dvalues.device.as<void>(), other.device->as<void>(),
                     other.bytes.size(), cudaMemcpyDeviceToDevice),
          "cudaMemcpy");
  tensors.other_dvalues = in_place.dvalues.view().view();
  ASSERT_TRUE(in_place.run(tensors, mode));
  expect_gradients(in_place, inputs, mode, &other);
}

TEST(DeviceZohBackward, EveryDtypeAndShape) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(1);
  int turn = 0;
  for (const DType dtype : kDTypes) {
    for (const std::int64_t dim : {1, 8, 24, 32, 64, 80, 100, 128, 256, 264, 520}) {
      for (const std::int64_t heads : {1, 2, 12, 40}) {
        for (const bool is_per_head : {true, false}) {
          // The sums of wide rows in float64 take their time.
          if (!is_per_head && (heads == 1 || heads * dim > 1100)) continue;
          const std::int64_t kv_len = dim > 128 ? 41 : 77;
          const DType weight_dtype = turn % 3 == 0 ? dtype : kDTypes[turn % 3];
          const ZohMode mode = turn % 2 == 0 ? ZohMode::exp : ZohMode::log;
          SCOPED_TRACE(testing::Message()
                       << to_string(dtype) << " " << to_string(weight_dtype) << " head_dim " << dim
                       << " heads " << heads << " " << is_per_head << " " << to_string(mode));
          const Inputs inputs({2, kv_len, heads, dim, is_per_head}, dtype, weight_dtype, random);
          check_case(inputs, mode, turn % 5 < 2, random);
          if (testing::Test::HasFatalFailure()) return;
          ++turn;
        }
      }
    }
  }
}

// More keys than units take at a time, batch elements that units move on to, few dscores.
TEST(DeviceZohBackward, ManyKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(2);
  for (const auto& [batch, kv_len, heads, dim] : std::vector<std::array<std::int64_t, 4>>{
           {1, 40011, 3, 64}, {300, 37, 2, 128}, {3, 5003, 1, 128}, {2, 3001, 8, 256}}) {
    for (const double kept : {1.0, 0.05}) {
      for (const DType dtype : {DType::bfloat16, DType::float32}) {
        SCOPED_TRACE(testing::Message() << batch << " " << kv_len << " " << heads << " " << kept);
        check_case(Inputs({batch, kv_len, heads, dim, true}, dtype, dtype, random, kept),
                   ZohMode::exp, false, random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  const Inputs wide({2, 9001, 4, 32, false}, DType::bfloat16, DType::bfloat16, random, 0.3);
  check_case(wide, ZohMode::exp, false, random);
}

// Wide rows of up to 4,096 elements, in whole blocks and a few more, with one key and many tiles.
TEST(DeviceZohBackward, WideRows) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(10);
  int turn = 0;
  for (const auto& [batch, kv_len, heads, dim] :
       std::vector<std::array<std::int64_t, 4>>{{1, 77, 32, 128},
                                                {2, 300, 16, 256},
                                                {1, 600, 32, 128},
                                                {2, 1500, 4, 896},
                                                {3, 1300, 5, 136},
                                                {1, 7001, 8, 128},
                                                {1, 41, 26, 160},
                                                {2, 700, 12, 232},
                                                {1, 1, 31, 64}}) {
    for (const double kept : {1.0, 0.02}) {
      for (const DType dtype : kDTypes) {
        // The sums of wide rows in float64 take their time.
        if (dtype != DType::bfloat16 && batch * kv_len * heads * heads * dim > 20'000'000) continue;
        SCOPED_TRACE(testing::Message() << batch << " " << kv_len << " " << heads << " " << dim
                                        << " " << kept << " " << to_string(dtype));
        const Inputs inputs({batch, kv_len, heads, dim, false}, dtype, dtype, random, kept);
        check_case(inputs, turn % 2 == 0 ? ZohMode::exp : ZohMode::log, turn % 3 == 0, random);
        if (testing::Test::HasFatalFailure()) return;
        ++turn;
      }
    }
  }
}

// Slices of larger tensors, 16-byte rows and others; dscores, dt_proj and their gradients
// transposed.
TEST(DeviceZohBackward, Strides) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(3);
  for (const std::int64_t offset : {0, 8, 3}) {
    for (const bool is_per_head : {true, false}) {
      const std::int64_t width = is_per_head ? 64 : 192;
      const Inputs exact({2, 48, 3, 64, is_per_head}, DType::bfloat16, DType::bfloat16, random);
      const std::int64_t begin = 6 * 96 + 2 * 96 + offset;
      const auto at = [&](std::size_t i) {
        const auto flat = static_cast<std::int64_t>(i);
        const std::int64_t d = flat % 64, h = flat / 64 % 3, k = flat / 192 % 48, b = flat / 9216;
        return static_cast<std::size_t>(begin + ((b * 50 + k) * 6 + h) * 96 + d);
      };
      Tensor all = make_tensor(DType::bfloat16, {2, 50, 6, 96}, random);
      for (std::size_t i = 0; i < exact.values.exact.size(); ++i) {
        store(all, at(i), static_cast<float>(exact.values.exact[i]));
      }
      upload(all);
      const auto slice = [&](auto view) {
        using Bytes =
            std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                               const std::uint8_t, std::uint8_t>;
        view.data = static_cast<Bytes*>(view.data) + begin * 2;
        view.extents = {2, 48, 3, 64};
        view.strides = {50 * 6 * 96, 6 * 96, 96, 1};
        return view;
      };
      Tensor weights = make_tensor(DType::bfloat16, {width, 3}, random);
      Tensor dscores = make_tensor(DType::float32, {48, 2, 3}, random);
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t i = 0; i < width; ++i) {
          store(weights, static_cast<std::size_t>(i * 3 + h),
                static_cast<float>(exact.dt_proj.exact[static_cast<std::size_t>(h * width + i)]));
        }
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::int64_t k = 0; k < 48; ++k) {
            const auto from = static_cast<std::size_t>((b * 3 + h) * 48 + k);
            store(dscores, static_cast<std::size_t>((k * 2 + b) * 3 + h),
                  static_cast<float>(exact.dscores.exact[from]));
          }
        }
      }
      upload(weights);
      upload(dscores);
      ZohBackwardTensors tensors = exact.tensors();
      tensors.values = slice(all.view());
      tensors.dt_proj.data = weights.device->as<void>();
      tensors.dt_proj.strides = {1, 3, 0, 0};
      tensors.dscores.data = dscores.device->as<void>();
      tensors.dscores.strides = {3, 1, 6, 0};
      const Gradient dvalues(all, DType::bfloat16), dweights(weights, DType::float32);
      const Outputs rest(exact);
      tensors.dvalues = slice(dvalues.view());
      tensors.ddt_proj = dweights.view();
      tensors.ddt_proj.extents = {3, width, 1, 1};
      tensors.ddt_proj.strides = {1, 3, 0, 0};
      tensors.da_coef = rest.da_coef.view();
      const Result<void> done =
          zoh_scores_backward(tensors, ZohMode::log, rest.workspace.as<void>(), nullptr);
      ASSERT_TRUE(done) << done.error().message;
      const auto expected = zoh_gradients(exact.problem(ZohMode::log));
      expect_near(rest.da_coef, expected.da_coef, "da_coef");
      const std::vector<double> got = dvalues.to_host(), got_weights = dweights.to_host();
      std::vector<bool> is_written(got.size());
      for (std::size_t i = 0; i < expected.dvalues.exact.size(); ++i) {
        const double x = expected.dvalues.exact[i];
        is_written[at(i)] = true;
        ASSERT_NEAR(got[at(i)], x,
                    expected.dvalues.error[i] * 1.01 + rounding_error(x, DType::bfloat16))
            << offset << " " << i;
      }
      const double poison = __bfloat162float(__nv_bfloat16_raw{0xA5A5});
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(is_written[i] || got[i] == poison) << i;
      }
      for (std::size_t i = 0; i < got_weights.size(); ++i) {
        const std::size_t from = i % 3 * static_cast<std::size_t>(width) + i / 3;
        ASSERT_NEAR(got_weights[i], expected.ddt_proj.exact[from],
                    expected.ddt_proj.error[from] * 1.01 + 1e-6)
            << offset << " " << i;
      }
    }
  }
}

TEST(DeviceZohBackward, GradientsThatAreNotWanted) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(4);
  for (const bool is_per_head : {true, false}) {
    const Inputs inputs({1, 300, 3, 64, is_per_head}, DType::float16, DType::float16, random);
    Outputs all(inputs);
    ASSERT_TRUE(all.run(inputs.tensors(), ZohMode::exp));
    const Outputs none(inputs);
    for (int wanted = 0; wanted < 8; ++wanted) {
      const Outputs some(inputs);
      ZohBackwardTensors tensors = inputs.tensors();
      if ((wanted & 1) != 0) tensors.dvalues = some.dvalues.view();
      if ((wanted & 2) != 0) tensors.ddt_proj = some.ddt_proj.view();
      if ((wanted & 4) != 0) tensors.da_coef = some.da_coef.view();
      ASSERT_TRUE(zoh_scores_backward(tensors, ZohMode::exp, some.workspace.as<void>(), nullptr));
      const auto expect = [&](bool is_wanted, Gradient Outputs::*gradient) {
        EXPECT_EQ((some.*gradient).device.to_host(),
                  ((is_wanted ? all : none).*gradient).device.to_host())
            << wanted;
      };
      expect((wanted & 1) != 0, &Outputs::dvalues);
      expect((wanted & 2) != 0, &Outputs::ddt_proj);
      expect((wanted & 4) != 0, &Outputs::da_coef);
    }
  }
}

// Each replay of a graph computes with the present contents of the tensors.
TEST(DeviceZohBackward, InAGraph) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(5);
  for (const bool is_per_head : {true, false}) {
    Inputs inputs({1, 700, 4, 64, is_per_head}, DType::bfloat16, DType::bfloat16, random);
    Outputs outputs(inputs);
    ASSERT_TRUE(outputs.run(inputs.tensors(), ZohMode::exp));  // loads the kernels
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    require(cudaStreamCreate(&stream), "cudaStreamCreate");
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    ASSERT_TRUE(outputs.run(inputs.tensors(), ZohMode::exp, stream));
    require(cudaStreamEndCapture(stream, &graph), "capture");
    require(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    for (std::size_t i = 0; i < inputs.dscores.exact.size(); i += 2) store(inputs.dscores, i, 0.5F);
    require(cudaMemcpy(inputs.dscores.device->as<void>(), inputs.dscores.bytes.data(),
                       inputs.dscores.bytes.size(), cudaMemcpyHostToDevice),
            "cudaMemcpy");
    require(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    expect_gradients(outputs, inputs, ZohMode::exp);
    require(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    require(cudaGraphDestroy(graph), "cudaGraphDestroy");
    require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
}

// NaN in keys that no query keeps does not spread, with both shapes of dt_proj and in place.
TEST(DeviceZohBackward, KeysWithoutADscoreAreNotRead) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(6);
  for (const DType dtype : kDTypes) {
    for (const std::int64_t dim : {64, 20}) {
      for (const bool is_per_head : {true, false}) {
        Inputs inputs({1, 300, 3, dim, is_per_head}, dtype, dtype, random, 1);
        const auto row = static_cast<std::size_t>(3 * dim);
        for (std::size_t k = 0; k < 300; k += 3) {
          for (std::size_t h = 0; h < 3; ++h) store(inputs.dscores, h * 300 + k, 0);
        }
        upload(inputs.dscores);
        Tensor poisoned = make_tensor(dtype, inputs.values.extents, random, 0);
        for (std::size_t i = 0; i < inputs.values.exact.size(); ++i) {
          const bool is_poisoned = i / row % 3 == 0;
          store(poisoned, i,
                !is_poisoned ? static_cast<float>(inputs.values.exact[i])
                : i % 2 == 0 ? kNan
                             : kInfinity);
        }
        upload(poisoned);
        ZohBackwardTensors tensors = inputs.tensors();
        tensors.values = poisoned.view();
        Outputs outputs(inputs);
        ASSERT_TRUE(outputs.run(tensors, ZohMode::exp));
        expect_gradients(outputs, inputs, ZohMode::exp);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceZohBackward, ExtremesAndWhatIsNotFinite) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(7);
  const std::vector<float> dts{0, 2048, -2048, 60, -60, kInfinity, -kInfinity, kNan};
  for (const DType dtype : kDTypes) {
    for (const std::int64_t dim : {64, 20}) {
      Inputs inputs({1, 8, 1, dim, true}, dtype, dtype, random, 1);
      inputs.values = make_tensor(dtype, inputs.values.extents, random, 0);
      inputs.dt_proj = make_tensor(dtype, inputs.dt_proj.extents, random, 0);
      store(inputs.dt_proj, 0, 1);
      store(inputs.a_coef, 0, -1);
      for (std::size_t k = 0; k < dts.size(); ++k) {
        store(inputs.values, static_cast<std::size_t>(dim) * k, dts[k]);
        store(inputs.dscores, k, 1);
      }
      for (Tensor* tensor : {&inputs.values, &inputs.dt_proj, &inputs.a_coef, &inputs.dscores}) {
        upload(*tensor);
      }
      Outputs log(inputs, true), exp(inputs, true);
      ASSERT_TRUE(log.run(inputs.tensors(), ZohMode::log));
      ASSERT_TRUE(exp.run(inputs.tensors(), ZohMode::exp));
      const std::vector<double> by_log = log.dvalues.to_host(), by_exp = exp.dvalues.to_host();
      const auto at = [&](std::size_t k) { return k * static_cast<std::size_t>(dim); };
      EXPECT_NEAR(by_log[at(0)], -0.5, 1e-6);
      EXPECT_EQ(by_log[at(1)], -1);
      EXPECT_EQ(by_log[at(2)], 0);
      EXPECT_NEAR(by_log[at(3)], -1, 1e-6);
      EXPECT_NEAR(by_log[at(4)] / -std::exp(-60.0), 1, 1e-5);
      EXPECT_EQ(by_log[at(5)], -1);
      EXPECT_EQ(by_log[at(6)], 0);
      EXPECT_TRUE(std::isnan(by_log[at(7)]));
      EXPECT_NEAR(by_exp[at(0)], -0.25, 1e-6);
      for (const std::size_t k : {1, 2, 5, 6}) EXPECT_EQ(by_exp[at(k)], 0) << k;
      EXPECT_NEAR(by_exp[at(3)] / -std::exp(-60.0), 1, 1e-4);
      EXPECT_TRUE(std::isnan(by_exp[at(7)]));
    }
  }
}

TEST(DeviceZohBackward, NoKeysGiveZeros) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(8);
  const Inputs inputs({2, 0, 2, 64, true}, DType::float32, DType::float32, random);
  Outputs outputs(inputs);
  ASSERT_TRUE(outputs.run(inputs.tensors(), ZohMode::exp));
  for (const double x : outputs.ddt_proj.to_host()) EXPECT_EQ(x, 0);
  for (const double x : outputs.da_coef.to_host()) EXPECT_EQ(x, 0);
}

TEST(DeviceZohBackward, RejectsTensorsOnTheHost) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(9);
  const Inputs inputs({1, 8, 2, 64, true}, DType::float32, DType::float32, random);
  const Outputs outputs(inputs);
  ZohBackwardTensors good = inputs.tensors();
  good.dvalues = outputs.dvalues.view();
  void* const workspace = outputs.workspace.as<void>();
  const auto error = [&](const ZohBackwardTensors& tensors, void* memory) {
    const Result<void> result = zoh_scores_backward(tensors, ZohMode::exp, memory, nullptr);
    return result ? std::string("none") : result.error().message;
  };
  ZohBackwardTensors wrong = good;
  wrong.dscores.device = Device::cpu;
  EXPECT_THAT(error(wrong, workspace), HasSubstr("dscores: expected the device of values"));
  wrong = good;
  wrong.dvalues.device = Device::cpu;
  EXPECT_THAT(error(wrong, workspace), HasSubstr("dvalues: expected the device of values"));
  EXPECT_THAT(error(good, nullptr), HasSubstr("workspace: expected"));
  EXPECT_THAT(error(good, outputs.workspace.as<char>() + 8), HasSubstr("aligned to 256"));
  wrong = good;
  wrong.values = inputs.values.host_view();
  wrong.dt_proj = inputs.dt_proj.host_view();
  wrong.a_coef = inputs.a_coef.host_view();
  wrong.dscores = inputs.dscores.host_view();
  wrong.dvalues.device = Device::cpu;
  EXPECT_THAT(error(wrong, workspace), HasSubstr("values: on the host"));
  EXPECT_EQ(error(good, workspace), "none");
}

}  // namespace
}  // namespace fdma
