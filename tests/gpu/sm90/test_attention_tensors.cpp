// Tensors that attention on the GPU refuses, with an error that names them and before anything is
// launched, and tensors whose offsets do not fit into 32 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using gpu_test::OwnedPlan;
using gpu_test::prepared;
using gpu_test::require;
using gpu_test::Workspace;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using ::testing::HasSubstr;
using testing::MaskCase;

MaskCase causal(std::int64_t q_len, std::int64_t kv_len) {
  return testing::case_of("causal",
                          testing::make_cells(q_len, kv_len, [](auto q, auto k) { return k <= q; }),
                          {128, 128});
}

// A layout with gaps, so that a stride can change without two elements at one address.
CaseChoice with_bias() {
  CaseChoice choice;
  choice.layout = testing::Layout::padded;
  choice.has_bias = true;
  return choice;
}

class AttentionTensorsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override { FDMA_SKIP_WITHOUT_HOPPER(); }

  // Expects an error that names `named` and has this code, and that nothing was written.
  void expect_rejected(const char* named, ErrorCode code,
                       const std::function<void(AttentionTensors&)>& change,
                       AttentionOptions options = {}) {
    BackendAttentionCase test_case(fixture_, mask_, {2, 4, 2}, with_bias());
    const OwnedPlan plan = prepared(test_case.plan());
    const Workspace workspace(*plan);
    AttentionTensors tensors = test_case.tensors();
    change(tensors);
    test_case.poison(0x3c);
    const auto ran = plan->forward(tensors, {workspace.data()}, options);
    require(cudaDeviceSynchronize(), named);
    ASSERT_FALSE(ran.has_value()) << named;
    EXPECT_EQ(ran.error().code, code) << ran.error().message;
    EXPECT_THAT(ran.error().message, HasSubstr(named));
    test_case.fetch();
    for (const unsigned char byte : test_case.result_bytes()) ASSERT_EQ(byte, 0x3c) << named;
  }

  // Expects the same for this change of each of q, k, v and out.
  template <class Change>
  void expect_each_rejected(ErrorCode code, const Change& change) {
    expect_rejected("q", code, [&](AttentionTensors& t) {
      change(t.q.data, t.q.strides, t.q.dtype, t.q.device);
    });
    expect_rejected("k", code, [&](AttentionTensors& t) {
      change(t.kv.k.data, t.kv.k.strides, t.kv.k.dtype, t.kv.k.device);
    });
    expect_rejected("v", code, [&](AttentionTensors& t) {
      change(t.kv.v.data, t.kv.v.strides, t.kv.v.dtype, t.kv.v.device);
    });
    expect_rejected("out", code, [&](AttentionTensors& t) {
      change(t.out.data, t.out.strides, t.out.dtype, t.out.device);
    });
  }

  GpuFixture fixture_;
  MaskCase mask_ = causal(150, 200);
};

TEST_F(AttentionTensorsOnGpu, OnTheHostAreRejected) {
  expect_each_rejected(ErrorCode::unsupported,
                       [](auto&, auto&, auto&, Device& device) { device = Device::cpu; });
  expect_rejected("key_bias", ErrorCode::unsupported,
                  [](AttentionTensors& t) { t.key_bias.device = Device::cpu; });
  expect_rejected("lse", ErrorCode::unsupported,
                  [](AttentionTensors& t) { t.lse.device = Device::cpu; });
}

TEST_F(AttentionTensorsOnGpu, OfAnotherTypeThanThePlansAreRejected) {
  for (const DType wrong : {DType::float16, DType::float32}) {
    expect_each_rejected(ErrorCode::shape_mismatch,
                         [wrong](auto&, auto&, DType& dtype, auto&) { dtype = wrong; });
  }
}

TEST_F(AttentionTensorsOnGpu, WithStridesThatAreNoMultiplesOfEightAreRejected) {
  for (const std::size_t axis : {0U, 1U, 2U}) {
    expect_each_rejected(ErrorCode::unsupported,
                         [axis](auto&, auto& strides, auto&, auto&) { strides[axis] -= 4; });
  }
  // The last axis must be contiguous, since kernels read vectors along it.
  expect_each_rejected(ErrorCode::invalid_argument,
                       [](auto&, auto& strides, auto&, auto&) { strides[3] = 2; });
}

TEST_F(AttentionTensorsOnGpu, OutLowThatDoesNotLieAsOutIsRejected) {
  const auto change_and_expect = [&](const char* named, auto change) {
    expect_rejected(named, ErrorCode::unsupported, [&](AttentionTensors& t) {
      t.out_low = t.out;
      change(t.out_low);
    });
  };
  change_and_expect("out_low: expected the strides of out",
                    [](MutableTensorView& out_low) { out_low.strides[0] += 8; });
  change_and_expect("out_low: expected an address", [](MutableTensorView& out_low) {
    out_low.data = static_cast<char*>(out_low.data) + 8;
  });
}

TEST_F(AttentionTensorsOnGpu, AtMisalignedAddressesAreRejected) {
  for (const int bytes : {2, 8}) {
    for (const char* name : {"q", "k", "v"}) {
      expect_rejected(name, ErrorCode::unsupported, [&](AttentionTensors& t) {
        const void*& data = *name == 'q' ? t.q.data : *name == 'k' ? t.kv.k.data : t.kv.v.data;
        data = static_cast<const char*>(data) + bytes;
      });
    }
  }
  expect_rejected("q", ErrorCode::invalid_argument,
                  [](AttentionTensors& t) { t.q.data = static_cast<const char*>(t.q.data) + 1; });
}

TEST_F(AttentionTensorsOnGpu, WithoutDataOrOfOtherExtentsAreRejected) {
  expect_rejected("q", ErrorCode::invalid_argument,
                  [](AttentionTensors& t) { t.q.data = nullptr; });
  expect_rejected("out", ErrorCode::invalid_argument,
                  [](AttentionTensors& t) { t.out.data = nullptr; });
  expect_rejected("key_bias", ErrorCode::invalid_argument,
                  [](AttentionTensors& t) { t.key_bias = {}; });
  expect_rejected("k", ErrorCode::shape_mismatch,
                  [](AttentionTensors& t) { t.kv.k.extents[1] = 199; });
  expect_rejected("q", ErrorCode::shape_mismatch, [](AttentionTensors& t) { t.q.extents[3] -= 8; });
  expect_rejected("out", ErrorCode::invalid_argument,
                  [](AttentionTensors& t) { t.out.strides[2] = 0; });
  expect_rejected("paged", ErrorCode::unsupported,
                  [](AttentionTensors& t) { t.kv.layout = KvLayout::paged; });
  AttentionOptions options;
  options.softmax_scale = INFINITY;
  expect_rejected(
      "softmax_scale", ErrorCode::invalid_argument, [](auto&) {}, options);
}

TEST_F(AttentionTensorsOnGpu, NeedAWorkspace) {
  BackendAttentionCase test_case(fixture_, mask_, {2, 4, 2}, with_bias());
  const OwnedPlan plan = prepared(test_case.plan());
  const Workspace workspace(*plan);
  test_case.poison(0x3c);
  for (void* memory : {static_cast<void*>(nullptr),
                       static_cast<void*>(static_cast<char*>(workspace.data()) + 4)}) {
    const auto ran = plan->forward(test_case.tensors(), {memory});
    require(cudaDeviceSynchronize(), "workspace");
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().code, ErrorCode::invalid_argument) << ran.error().message;
    EXPECT_THAT(ran.error().message, HasSubstr("workspace"));
  }
  test_case.fetch();
  for (const unsigned char byte : test_case.result_bytes()) ASSERT_EQ(byte, 0x3c);
}

// KV heads with stride 0, as an expanded tensor has them. TMA takes no stride of 0, so the call
// must either give an error that says so or a correct result.
TEST_F(AttentionTensorsOnGpu, RepeatedByStrideZeroAreRightOrRejected) {
  BackendAttentionCase test_case(fixture_, mask_, {2, 4, 2}, with_bias());
  const OwnedPlan plan = prepared(test_case.plan());
  const Workspace workspace(*plan);
  AttentionTensors tensors = test_case.tensors();
  tensors.kv.k.strides[2] = tensors.kv.v.strides[2] = 0;
  test_case.poison(0xff);
  const auto ran = plan->forward(tensors, {workspace.data()});
  require(cudaDeviceSynchronize(), "attention_forward");
  if (!ran) {
    EXPECT_EQ(ran.error().code, ErrorCode::unsupported);
    EXPECT_THAT(ran.error().message, HasSubstr("stride"));
    return;
  }
  // Both KV heads are the first one. This case has the same heads stored twice.
  BackendAttentionCase equal(fixture_, mask_, {2, 4, 2}, with_bias());
  for (testing::BackendTensor* tensor : {&equal.k(), &equal.v()}) {
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 200; ++i)
        for (std::int64_t d = 0; d < 128; ++d) tensor->set(b, i, 1, d, tensor->get(b, i, 0, d));
    tensor->upload();
  }
  ASSERT_TRUE(equal.run());
  test_case.fetch();
  EXPECT_EQ(test_case.result_bytes(), equal.result_bytes());
}

// Strides of [batch, length, heads] in elements, of which one is large. The tensor spans more than
// 2^31 elements.
struct FarStrides {
  const char* name;
  std::array<std::int64_t, 3> strides;
};
constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 1024;
constexpr FarStrides kFarStrides[] = {
    {"batch", {kFar, 4 * 128, 128}},
    {"length", {128, kFar / 128, 256}},
    {"heads", {128, 256, kFar / 2}},
};

// Memory in which the elements of a small tensor are far apart.
class FarTensor {
 public:
  FarTensor(const TensorView& near, const FarStrides& far) : near_(near), far_(far.strides) {
    std::int64_t last = near.extents[3];
    for (std::size_t i = 0; i < 3; ++i) last += (near.extents[i] - 1) * far_[i];
    require(cudaMalloc(&memory_, static_cast<std::size_t>(last) * 2), "cudaMalloc");
    require(cudaMemset(memory_, 0xff, static_cast<std::size_t>(last) * 2), "cudaMemset");
  }
  ~FarTensor() { cudaFree(memory_); }
  FarTensor(const FarTensor&) = delete;
  FarTensor& operator=(const FarTensor&) = delete;

  MutableTensorView view() const {
    MutableTensorView view = near_.with_data(memory_);
    for (std::size_t i = 0; i < 3; ++i) view.strides[i] = far_[i];
    return view;
  }
  /// Copies every row of the compact tensor.
  void fill() const {
    const auto* const near = static_cast<const char*>(near_.data);
    copy_rows([&](char* far, std::int64_t near_offset, std::size_t bytes) {
      return cudaMemcpyAsync(far, near + near_offset, bytes, cudaMemcpyDeviceToDevice);
    });
  }
  /// Copies every row to a tensor that lies as the compact one.
  void copy_to(const MutableTensorView& like_near) const {
    auto* const near = static_cast<char*>(like_near.data);
    copy_rows([&](const char* far, std::int64_t near_offset, std::size_t bytes) {
      return cudaMemcpyAsync(near + near_offset, far, bytes, cudaMemcpyDeviceToDevice);
    });
  }

 private:
  // Calls copy(far row, offset of the compact row, bytes) for every row.
  template <class Copy>
  void copy_rows(const Copy& copy) const {
    for (std::int64_t b = 0; b < near_.extents[0]; ++b) {
      for (std::int64_t h = 0; h < near_.extents[2]; ++h) {
        for (std::int64_t i = 0; i < near_.extents[1]; ++i) {
          char* const far =
              static_cast<char*>(memory_) + 2 * (b * far_[0] + h * far_[2] + i * far_[1]);
          const std::int64_t near_offset =
              2 * (b * near_.strides[0] + h * near_.strides[2] + i * near_.strides[1]);
          require(copy(far, near_offset, static_cast<std::size_t>(near_.extents[3]) * 2), "copy");
        }
      }
    }
    require(cudaDeviceSynchronize(), "copy");
  }

  TensorView near_;
  std::array<std::int64_t, 3> far_;
  void* memory_ = nullptr;
};

TEST_F(AttentionTensorsOnGpu, MaySpanMoreThan32BitsCount) {
  std::size_t free_bytes = 0, all_bytes = 0;
  require(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  constexpr std::size_t kNeeded = std::size_t{48} << 30;
  if (free_bytes < kNeeded) GTEST_SKIP() << "needs 48 GiB of free GPU memory, has " << free_bytes;
  const MaskCase mask = causal(140, 190);
  for (const FarStrides& far : kFarStrides) {
    BackendAttentionCase test_case(fixture_, mask, {2, 3, 3}, with_bias());
    const auto near_ran = test_case.run();
    ASSERT_TRUE(near_ran) << near_ran.error().message;
    ASSERT_EQ(test_case.check(), "");
    const auto bytes = test_case.result_bytes();
    AttentionTensors tensors = test_case.tensors();
    const FarTensor q(tensors.q, far), k(tensors.kv.k, far), v(tensors.kv.v, far),
        out(tensors.out.view(), far);
    for (const FarTensor* tensor : {&q, &k, &v}) tensor->fill();
    tensors.q = q.view();
    tensors.kv.k = k.view();
    tensors.kv.v = v.view();
    tensors.out = out.view();
    const OwnedPlan plan = prepared(test_case.plan());
    const Workspace workspace(*plan);
    test_case.poison(0xff);
    const auto ran = plan->forward(tensors, {workspace.data()}, test_case.options());
    ASSERT_TRUE(ran) << far.name << ": " << ran.error().message;
    require(cudaDeviceSynchronize(), far.name);
    out.copy_to(test_case.tensors().out);
    test_case.fetch();
    EXPECT_EQ(test_case.result_bytes(), bytes) << far.name;
  }
}

}  // namespace
}  // namespace fdma
