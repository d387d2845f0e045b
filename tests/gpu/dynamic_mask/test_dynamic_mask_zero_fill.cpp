// Backward calls of Dynamic Mask Attention whose main kernel writes the zero fill of the fp32
// accumulators itself. For deterministic calls, kernels before the main kernel write it. Both kinds
// of calls must give the same gradients, whatever is in memory. The main kernel writes the zero
// fill if there are several KV heads and the steps of 1,024 queries times the tiles of w keys are
// at least 132.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "device_array.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using gpu_test::require;

std::uint16_t bfloat16_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct Case {
  std::int64_t batch;
  std::vector<std::int64_t> lengths;  // one for all batch elements, or one for each
  std::int32_t heads_q, heads_kv, head_dim;
  bool is_drifting;
  std::int64_t w = 2048;
};

// The shape and tensors that both calls have.
class Calls {
 public:
  explicit Calls(const Case& c)
      : c_(c), tokens_(*std::max_element(c.lengths.begin(), c.lengths.end())) {
    spec_.shape.batch = c.batch;
    spec_.shape.heads_q = c.heads_q;
    spec_.shape.heads_kv = c.heads_kv;
    spec_.shape.q_lens = spec_.shape.kv_lens = c.lengths;
    spec_.shape.head_dim = spec_.shape.head_dim_v = c.head_dim;
    spec_.shape.q_dtype = spec_.shape.k_dtype = spec_.shape.v_dtype = spec_.shape.out_dtype =
        DType::bfloat16;
    spec_.w = c.w;
    spec_.backend = Backend::sm90;
    spec_.has_gradients = true;
  }
  DynamicMaskSpec spec() const { return spec_; }
  std::size_t num_queries() const { return size(c_.heads_q) * dim(); }
  std::size_t num_keys() const { return size(c_.heads_kv) * dim(); }
  std::size_t num_scores() const { return size(c_.heads_kv); }
  std::size_t num_rows() const { return size(c_.heads_q); }

  std::vector<std::uint16_t> normal(std::size_t count) {
    std::normal_distribution<float> of;
    std::vector<std::uint16_t> values(count);
    for (std::uint16_t& value : values) value = bfloat16_of(of(random_));
    return values;
  }
  std::vector<float> scores() {
    std::normal_distribution<float> of;
    std::vector<float> values(num_scores());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto key = static_cast<float>(i % static_cast<std::size_t>(tokens_));
      values[i] = of(random_) + (c_.is_drifting ? key / 2048 : 0.0F);
    }
    return values;
  }
  MutableTensorView queries(void* data) const { return view(data, DType::bfloat16, c_.heads_q); }
  MutableTensorView keys(void* data, DType dtype = DType::bfloat16) const {
    return view(data, dtype, c_.heads_kv);
  }
  MutableTensorView rows(void* data, std::int32_t heads, std::int64_t last = 0,
                         DType dtype = DType::float32) const {
    const std::int64_t extents[] = {c_.batch, heads, tokens_, last};
    MutableTensorView made = make_contiguous_mutable_view(data, dtype, last == 0 ? 3 : 4, extents);
    made.device = Device::cuda;
    return made;
  }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(c_.head_dim); }
  std::size_t size(std::int32_t heads) const {
    return static_cast<std::size_t>(c_.batch * tokens_ * heads);
  }
  MutableTensorView view(void* data, DType dtype, std::int32_t heads) const {
    const std::int64_t extents[] = {c_.batch, tokens_, heads, c_.head_dim};
    MutableTensorView made = make_contiguous_mutable_view(data, dtype, 4, extents);
    made.device = Device::cuda;
    return made;
  }

  Case c_;
  std::int64_t tokens_;
  DynamicMaskSpec spec_;
  std::mt19937 random_{7};
};

std::vector<float> widened(const DeviceArray<std::uint16_t>& array) {
  const std::vector<std::uint16_t> values = array.to_host();
  std::vector<float> wide(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = std::uint32_t{values[i]} << 16;
    std::memcpy(&wide[i], &bits, sizeof bits);
  }
  return wide;
}

// Compares up to the last few bits of 16-bit numbers, since sums were added in another order.
void expect_same(const char* name, const std::vector<float>& got, const std::vector<float>& exact) {
  float largest = 0;
  for (const float x : exact) largest = std::max(largest, std::abs(x));
  std::size_t num_wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float bound = std::abs(exact[i]) / 64 + largest / 8192;
    if (!(std::abs(got[i] - exact[i]) <= bound)) ++num_wrong;
  }
  EXPECT_EQ(num_wrong, 0U) << name;
  EXPECT_GT(largest, 0.01F) << name;
}

// A backward call with the results of its forward call and the memory of its gradients.
class CaseOnGpu {
 public:
  explicit CaseOnGpu(const Case& c)
      : calls_(c),
        attention_(made(calls_.spec())),
        q_(calls_.normal(calls_.num_queries())),
        k_(calls_.normal(calls_.num_keys())),
        v_(calls_.normal(calls_.num_keys())),
        dout_(calls_.normal(calls_.num_queries())),
        scores_(calls_.scores()),
        out_(calls_.num_queries()),
        dq_(calls_.num_queries()),
        dk_(calls_.num_keys()),
        dv_(calls_.num_keys()),
        lse_(calls_.num_rows()),
        dscores_(calls_.num_scores()),
        kept_(2 * calls_.num_scores()) {
    DynamicMaskTensors tensors;
    tensors.q = calls_.queries(q_.data()).view();
    tensors.kv.k = calls_.keys(k_.data()).view();
    tensors.kv.v = calls_.keys(v_.data()).view();
    tensors.scores = calls_.rows(scores_.data(), c.heads_kv).view();
    tensors.out = calls_.queries(out_.data());
    tensors.lse = calls_.rows(lse_.data(), c.heads_q);
    tensors.kept = calls_.rows(kept_.data(), c.heads_kv, 2, DType::int32);
    const DeviceArray<unsigned char> workspace(
        static_cast<std::size_t>(attention_.workspace_bytes()));
    const Result<void> forward = attention_.run(tensors, workspace.data());
    if (!forward) throw std::runtime_error(forward.error().message);
    require(cudaDeviceSynchronize(), "forward");

    gradients_.q = tensors.q;
    gradients_.kv = tensors.kv;
    gradients_.scores = tensors.scores;
    gradients_.kept = tensors.kept.view();
    gradients_.out = tensors.out.view();
    gradients_.lse = tensors.lse.view();
    gradients_.dout = calls_.queries(dout_.data()).view();
    gradients_.dq = calls_.queries(dq_.data());
    gradients_.dk = calls_.keys(dk_.data());
    gradients_.dv = calls_.keys(dv_.data());
    gradients_.dscores = calls_.rows(dscores_.data(), c.heads_kv);
    run(true, 0xFF);
    exact_dq_ = widened(dq_);
    exact_dk_ = widened(dk_);
    exact_dv_ = widened(dv_);
    exact_dscores_ = dscores_.to_host();
  }

  std::size_t workspace_bytes(bool is_deterministic) const {
    return static_cast<std::size_t>(attention_.backward_workspace_bytes(options(is_deterministic)));
  }
  Result<void> backward(void* memory, Stream stream, bool is_deterministic) const {
    return attention_.backward(gradients_, memory, stream, options(is_deterministic));
  }
  /// Fills the workspace and the gradients with `byte`, and waits for the device.
  void poison(const DeviceArray<unsigned char>& memory, int byte) const {
    require(cudaMemset(memory.data(), byte, memory.size()), "cudaMemset");
    for (const auto* to : {&dq_, &dk_, &dv_}) {
      require(cudaMemset(to->data(), 0x3F, to->size() * 2), "cudaMemset");
    }
    require(cudaDeviceSynchronize(), "cudaMemset");
  }
  void run(bool is_deterministic, int byte) const {
    const DeviceArray<unsigned char> memory(workspace_bytes(is_deterministic));
    poison(memory, byte);
    const Result<void> done = backward(memory.data(), nullptr, is_deterministic);
    EXPECT_TRUE(done) << done.error().message;
    require(cudaDeviceSynchronize(), "backward");
  }
  /// Compares the gradients with those of the deterministic call.
  void check() const {
    expect_same("dq", widened(dq_), exact_dq_);
    expect_same("dk", widened(dk_), exact_dk_);
    expect_same("dv", widened(dv_), exact_dv_);
    expect_same("dscores", dscores_.to_host(), exact_dscores_);
  }

 private:
  static DynamicMaskAttention made(const DynamicMaskSpec& spec) {
    Result<DynamicMaskAttention> attention = DynamicMaskAttention::make(spec);
    if (!attention) throw std::runtime_error(attention.error().message);
    return std::move(*attention);
  }
  static BackwardOptions options(bool is_deterministic) {
    BackwardOptions options;
    options.deterministic = is_deterministic;
    return options;
  }

  Calls calls_;
  DynamicMaskAttention attention_;
  DeviceArray<std::uint16_t> q_, k_, v_, dout_;
  DeviceArray<float> scores_;
  DeviceArray<std::uint16_t> out_, dq_, dk_, dv_;
  DeviceArray<float> lse_, dscores_;
  DeviceArray<std::int32_t> kept_;
  DynamicMaskBackwardTensors gradients_;
  std::vector<float> exact_dq_, exact_dk_, exact_dv_, exact_dscores_;
};

class DynamicMaskZeroFill : public ::testing::TestWithParam<Case> {};

TEST_P(DynamicMaskZeroFill, AreWrittenInTime) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const CaseOnGpu on_gpu(GetParam());
  for (const int poison : {0xFF, 0x41, 0x00}) {
    on_gpu.run(false, poison);
    on_gpu.check();
  }
}

TEST_P(DynamicMaskZeroFill, AreWrittenInEveryReplayOfAGraph) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const CaseOnGpu on_gpu(GetParam());
  const gpu_test::OwnedStream stream;
  const DeviceArray<unsigned char> memory(on_gpu.workspace_bytes(false));
  const gpu_test::CapturedGraph graph(
      stream, [&] { return on_gpu.backward(memory.data(), stream.get(), false); });
  for (const int poison : {0xFF, 0x41, 0xFF}) {
    on_gpu.poison(memory, poison);
    graph.replay();
    on_gpu.check();
  }
  // This replay finds the memory as the replay before left it.
  graph.replay();
  on_gpu.check();
}

INSTANTIATE_TEST_SUITE_P(Cases, DynamicMaskZeroFill,
                         ::testing::Values(Case{1, {9216}, 3, 3, 128, true},
                                           Case{1, {9000}, 4, 2, 64, false},
                                           Case{2, {12288, 9000}, 2, 1, 128, true},
                                           Case{3, {9216, 5000, 9216}, 4, 2, 128, false}));

// Small cases for runs under sanitizers.
INSTANTIATE_TEST_SUITE_P(Small, DynamicMaskZeroFill,
                         ::testing::Values(Case{1, {4224}, 2, 2, 128, true, 4096},
                                           Case{2, {4224, 4000}, 1, 1, 64, false, 4096}));

}  // namespace
}  // namespace fdma
