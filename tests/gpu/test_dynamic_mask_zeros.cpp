// Backward calls of Dynamic Mask Attention whose main kernel writes zeros of sums itself, beside
// those with an order, for which kernels before it do: the same gradients, whatever is in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device_array.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;

std::uint16_t bfloat16_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct Case {
  std::int64_t batch;
  std::vector<std::int64_t> lengths;  // one, or of each batch element
  std::int32_t heads_q, heads_kv, head_dim;
  bool is_drifting;
};

// Of one shape: the tensors of both calls.
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
    spec_.w = 2048;
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

// A few last digits of 16 bits: sums were added up in another order.
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

class DynamicMaskZeros : public ::testing::TestWithParam<Case> {};

TEST_P(DynamicMaskZeros, AreWrittenInTime) {
  FDMA_SKIP_WITHOUT_HOPPER();
  Calls calls(GetParam());
  const auto made = DynamicMaskAttention::make(calls.spec());
  ASSERT_TRUE(made) << made.error().message;
  const DynamicMaskAttention& attention = *made;
  const DeviceArray<std::uint16_t> q(calls.normal(calls.num_queries())),
      k(calls.normal(calls.num_keys())), v(calls.normal(calls.num_keys())),
      dout(calls.normal(calls.num_queries()));
  const DeviceArray<float> scores(calls.scores());
  const DeviceArray<std::uint16_t> out(calls.num_queries()), dq(calls.num_queries()),
      dk(calls.num_keys()), dv(calls.num_keys());
  const DeviceArray<float> lse(calls.num_rows()), dscores(calls.num_scores());
  const DeviceArray<std::int32_t> kept(2 * calls.num_scores());
  const DeviceArray<unsigned char> workspace(static_cast<std::size_t>(attention.workspace_bytes()));
  const std::int32_t heads_q = GetParam().heads_q, heads_kv = GetParam().heads_kv;

  DynamicMaskTensors tensors;
  tensors.q = calls.queries(q.data()).view();
  tensors.kv.k = calls.keys(k.data()).view();
  tensors.kv.v = calls.keys(v.data()).view();
  tensors.scores = calls.rows(scores.data(), heads_kv).view();
  tensors.out = calls.queries(out.data());
  tensors.lse = calls.rows(lse.data(), heads_q);
  tensors.kept = calls.rows(kept.data(), heads_kv, 2, DType::int32);
  const Result<void> forward = attention.run(tensors, workspace.data());
  ASSERT_TRUE(forward) << forward.error().message;

  DynamicMaskBackwardTensors gradients;
  gradients.q = tensors.q;
  gradients.kv = tensors.kv;
  gradients.scores = tensors.scores;
  gradients.kept = tensors.kept.view();
  gradients.out = tensors.out.view();
  gradients.lse = tensors.lse.view();
  gradients.dout = calls.queries(dout.data()).view();
  gradients.dq = calls.queries(dq.data());
  gradients.dk = calls.keys(dk.data());
  gradients.dv = calls.keys(dv.data());
  gradients.dscores = calls.rows(dscores.data(), heads_kv);
  const auto run = [&](bool is_deterministic, int poison) {
    BackwardOptions options;
    options.deterministic = is_deterministic;
    const auto bytes = static_cast<std::size_t>(attention.backward_workspace_bytes(options));
    const DeviceArray<unsigned char> memory(bytes);
    gpu_test::require(cudaMemset(memory.data(), poison, bytes), "cudaMemset");
    for (const auto* to : {&dq, &dk, &dv}) {
      gpu_test::require(cudaMemset(to->data(), 0x3F, to->size() * 2), "cudaMemset");
    }
    const Result<void> done = attention.backward(gradients, memory.data(), nullptr, options);
    EXPECT_TRUE(done) << done.error().message;
    gpu_test::require(cudaDeviceSynchronize(), "backward");
  };
  run(true, 0xFF);
  const std::vector<float> exact_dq = widened(dq), exact_dk = widened(dk), exact_dv = widened(dv),
                           exact_dscores = dscores.to_host();
  for (const int poison : {0xFF, 0x41, 0x00}) {
    run(false, poison);
    expect_same("dq", widened(dq), exact_dq);
    expect_same("dk", widened(dk), exact_dk);
    expect_same("dv", widened(dv), exact_dv);
    expect_same("dscores", dscores.to_host(), exact_dscores);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DynamicMaskZeros,
                         ::testing::Values(Case{1, {9216}, 3, 3, 128, true},
                                           Case{1, {9000}, 4, 2, 64, false},
                                           Case{2, {12288, 9000}, 2, 1, 128, true}));

}  // namespace
}  // namespace fdma
