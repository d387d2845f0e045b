// What each part of a score costs in attention on the CPU, on one thread: causal, two heads.
//
//   <direction>/<dtype>/<head_dim>/<tokens>/<part>   one call; `none` is the call without parts
//
// Backward calls want the gradient of the part. Run with --benchmark_enable_random_interleaving, so
// that a part and `none` see the same machine. Time is the CPU time of the process.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "google_benchmark.hpp"
#include "program.hpp"

namespace {

using fdma::DType;
using fdma::MutableTensorView;
using fdma::ScoreSpec;

constexpr std::int64_t kHeads = 2;

// Random numbers, about normal, as float32 or bfloat16.
class Numbers {
 public:
  Numbers(DType dtype, std::vector<std::int64_t> extents, unsigned seed)
      : dtype_(dtype), extents_(std::move(extents)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : extents_) count *= extent;
    bytes_.resize(static_cast<std::size_t>(count * fdma::size_bytes(dtype)));
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = seed == 0 ? 0.0F : normal(rng);
      const auto size = static_cast<std::size_t>(fdma::size_bytes(dtype));
      const char* from = reinterpret_cast<const char*>(&value) + (4 - size);  // its upper bytes
      std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * size, from, size);
    }
  }
  MutableTensorView view() {
    return fdma::make_contiguous_mutable_view(bytes_.data(), dtype_,
                                              static_cast<int>(extents_.size()), extents_.data());
  }

 private:
  DType dtype_;
  std::vector<std::int64_t> extents_;
  std::vector<char> bytes_;
};

struct Part {
  const char* name;
  ScoreSpec score;
  bool is_bias_16 = false;
};
constexpr Part kParts[] = {
    {"none", {}},
    {"softcap", {.softcap = true}},
    {"key_bias", {.key_bias = true}},
    {"sink", {.sink = true}},
    {"alibi", {.alibi = true}},
    {"relative_table", {.relative_table = true}},
    {"bias_fp32", {.bias = true}},
    {"bias_bf16", {.bias = true}, true},
    {"dropout", {.dropout = true}},
    {"alibi+sink", {.alibi = true, .sink = true}},
};

fdma::BlockMask causal(std::int64_t tokens) {
  fdma::MaskShape shape;
  shape.q_lens = shape.kv_lens = {tokens};
  const auto expr = fdma::value_or_exit(fdma::parse_mask("causal"), "causal");
  return fdma::value_or_exit(fdma::compile(expr, {}, shape), "causal");
}

void attend(benchmark::State& state, const Part& part, bool is_backward, DType dtype,
            std::int64_t head_dim, std::int64_t tokens) {
  const fdma::BlockMask mask = causal(tokens);
  fdma::AttentionShape shape;
  shape.batch = 1;
  shape.heads_q = shape.heads_kv = kHeads;
  shape.head_dim = shape.head_dim_v = static_cast<std::int32_t>(head_dim);
  shape.q_lens = shape.kv_lens = {tokens};
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
  const auto plan_of = [&](fdma::Direction direction) {
    fdma::PlanOptions options;
    options.direction = direction;
    return fdma::value_or_exit(fdma::make_plan(mask, shape, part.score, options), part.name);
  };
  const std::vector<std::int64_t> rows{1, tokens, kHeads, head_dim},
      pairs{1, kHeads, tokens, tokens};
  Numbers q(dtype, rows, 1), k(dtype, rows, 2), v(dtype, rows, 3), out(dtype, rows, 0);
  Numbers lse(DType::float32, {1, kHeads, tokens}, 0), dout(dtype, rows, 4);
  Numbers dq(dtype, rows, 0), dk(dtype, rows, 0), dv(dtype, rows, 0);
  const DType bias_dtype = part.is_bias_16 ? dtype : DType::float32;
  const std::vector<std::int64_t> of_pairs =
      part.score.bias ? pairs : std::vector<std::int64_t>{1, 1, 1, 1};
  Numbers bias(bias_dtype, of_pairs, 5), dbias(bias_dtype, of_pairs, 0);
  Numbers key_bias(DType::float32, {1, kHeads, tokens}, 6),
      dkey_bias(DType::float32, {1, kHeads, tokens}, 0);
  Numbers slopes(DType::float32, {kHeads}, 7), sinks(DType::float32, {kHeads}, 8),
      dsinks(DType::float32, {kHeads}, 0);
  Numbers table(DType::float32, {kHeads, 257}, 9), dtable(DType::float32, {kHeads, 257}, 0);

  fdma::AttentionTensors forward;
  forward.q = q.view();
  forward.kv.k = k.view();
  forward.kv.v = v.view();
  forward.out = out.view();
  forward.lse = lse.view();
  fdma::BackwardTensors backward;
  if (part.score.key_bias)
    forward.key_bias = key_bias.view(), backward.dkey_bias = dkey_bias.view();
  if (part.score.bias) forward.bias = bias.view(), backward.dbias = dbias.view();
  if (part.score.alibi) forward.alibi_slopes = slopes.view();
  if (part.score.relative_table) {
    forward.relative = table.view();
    backward.drelative = dtable.view();
  }
  if (part.score.sink) forward.sinks = sinks.view(), backward.dsinks = dsinks.view();
  fdma::AttentionOptions options;
  options.num_threads = 1;
  options.softcap = part.score.softcap ? 30.0F : 0.0F;
  options.relative_left = part.score.relative_table ? 128 : 0;
  if (part.score.dropout) options.dropout = {0.1, 42, 4};
  const fdma::AttentionPlan plan = plan_of(fdma::Direction::forward);
  fdma::require(fdma::attention_forward(plan, forward, options), part.name);
  if (!is_backward) {
    for (auto _ : state) {
      fdma::require(fdma::attention_forward(plan, forward, options), part.name);
    }
    return;
  }
  backward.q = forward.q;
  backward.kv = forward.kv;
  backward.key_bias = forward.key_bias;
  backward.bias = forward.bias;
  backward.alibi_slopes = forward.alibi_slopes;
  backward.relative = forward.relative;
  backward.sinks = forward.sinks;
  backward.out = out.view();
  backward.lse = lse.view();
  backward.dout = dout.view();
  backward.dq = dq.view();
  backward.dk = dk.view();
  backward.dv = dv.view();
  fdma::BackwardOptions backward_options;
  backward_options.num_threads = 1;
  backward_options.softcap = options.softcap;
  backward_options.relative_left = options.relative_left;
  backward_options.dropout = options.dropout;
  backward_options.delta_source = fdma::DeltaSource::output;
  const fdma::AttentionPlan backward_plan = plan_of(fdma::Direction::backward);
  for (auto _ : state) {
    fdma::require(fdma::attention_backward(backward_plan, backward, backward_options), part.name);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!fdma::begin_benchmarks(argc, argv)) return 1;
  for (const bool is_backward : {false, true}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const std::int64_t head_dim : {64, 128}) {
        for (const Part& part : kParts) {
          if (part.is_bias_16 && dtype == DType::float32) continue;
          const std::string name = std::string(is_backward ? "backward/" : "forward/") +
                                   std::string(to_string(dtype)) + "/" + std::to_string(head_dim) +
                                   "/2048/" + part.name;
          fdma::add_benchmark(name, [&part, is_backward, dtype, head_dim](benchmark::State& state) {
            attend(state, part, is_backward, dtype, head_dim, 2048);
          });
        }
      }
    }
  }
  return fdma::run_benchmarks();
}
