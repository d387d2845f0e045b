// merge on the host. The weights of a row's parts are computed once, in float64; then the row is
// added up a few hundred columns at a time. Threads take blocks of rows.
//
// Highway compiles this file once for each instruction set and selects one at run time. One thread
// computes a row, in the order of parts, so the result does not depend on the number of threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/merge.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "call/merge_call.hpp"
#include "cpu/call.hpp"
#include "cpu/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

constexpr std::int64_t kColumnsAtOnce = 256;  // whole vectors
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

inline std::int64_t offset(const RowStrides& strides, std::int64_t batch, std::int64_t head,
                           std::int64_t q) {
  return batch * strides.batch + head * strides.head + q * strides.q;
}

/// Sets the weight of each part of a row and returns lse. Where lse is -inf, weights are not set.
inline double set_weights(const MergeCall& call, std::int64_t batch, std::int64_t head,
                          std::int64_t q, std::array<float, kMaxMergeParts>& weights) {
  std::array<double, kMaxMergeParts> terms;  // lse, then exp(lse - largest)
  double largest = kNoKeys;
  const auto num_parts = static_cast<std::size_t>(call.num_parts);
  for (std::size_t i = 0; i < num_parts; ++i) {
    const MergeCall::Part& part = call.parts[i];
    terms[i] = part.lse[offset(part.lse_strides, batch, head, q)];
    largest = std::max(largest, terms[i]);
  }
  double sum = 0;
  for (std::size_t i = 0; i < num_parts; ++i) {
    terms[i] = terms[i] == kNoKeys ? 0 : std::exp(terms[i] - largest);
    sum += terms[i];
  }
  if (sum == 0) return kNoKeys;
  const double total = largest + std::log(sum);
  double kept = 1;
  if (call.sinks != nullptr) {
    kept = 1 / (1 + std::exp(call.sinks[offset(call.sink_strides, batch, head, q)] - total));
  }
  for (std::size_t i = 0; i < num_parts; ++i) {
    weights[i] = static_cast<float>(terms[i] / sum * kept);
  }
  return total;
}

/// Adds weight * values to sums, up to a whole vector past `count`.
HWY_INLINE void add_scaled(float weight, const float* values, std::size_t count, float* sums) {
  const FloatTag tag;
  for (std::size_t c = 0; c < count; c += kLanes) {
    const auto sum =
        hn::MulAdd(hn::Set(tag, weight), hn::LoadU(tag, values + c), hn::LoadU(tag, sums + c));
    hn::StoreU(sum, tag, sums + c);
  }
}

inline void merge_row(const MergeCall& call, std::int64_t batch, std::int64_t head,
                      std::int64_t q) {
  std::array<float, kMaxMergeParts> weights;
  const double lse = set_weights(call, batch, head, q, weights);
  if (call.lse != nullptr) {
    call.lse[offset(call.lse_strides, batch, head, q)] = static_cast<float>(lse);
  }
  const std::int64_t bytes = size_bytes(call.dtype);
  char* const out = static_cast<char*>(call.out) + offset(call.out_strides, batch, head, q) * bytes;
  float sums[kColumnsAtOnce] = {}, values[kColumnsAtOnce] = {};
  for (std::int64_t column = 0; column < call.head_dim_v; column += kColumnsAtOnce) {
    const auto count = static_cast<std::size_t>(std::min(kColumnsAtOnce, call.head_dim_v - column));
    std::fill_n(sums, count, 0.0F);
    for (std::size_t i = 0; i < static_cast<std::size_t>(call.num_parts); ++i) {
      const MergeCall::Part& part = call.parts[i];
      if (part.lse[offset(part.lse_strides, batch, head, q)] == kNoKeys) continue;
      load_row(static_cast<const char*>(part.out) +
                   (offset(part.out_strides, batch, head, q) + column) * bytes,
               call.dtype, count, values);
      add_scaled(weights[i], values, count, sums);
    }
    store_row(sums, call.dtype, count, out + column * bytes);
  }
}

void merge_rows_here(const MergeCall& call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    merge_row(call, row / (call.heads * call.q_len), row / call.q_len % call.heads,
              row % call.q_len);
  }
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <fmt/format.h>

#include "fdma/base/parallel.hpp"

namespace fdma {
namespace cpu {
namespace {

HWY_EXPORT(merge_rows_here);

void merge_rows(const MergeCall& call, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(merge_rows_here)(call, begin, end);
}

}  // namespace
}  // namespace cpu

Result<void> merge(const MergeTensors& tensors, int num_threads) {
  if (num_threads < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("num_threads: expected 0 or more, got {}", num_threads)};
  }
  FDMA_TRY(const MergeCall call, checked_merge(tensors, Device::cpu));
  FDMA_TRY_VOID(cpu::restrict_targets());
  constexpr std::int64_t kRows = 64;  // of a block
  const auto merge_block = [&](std::int64_t block) {
    const std::int64_t first = block * kRows;
    cpu::merge_rows(call, first, std::min(first + kRows, call.num_rows()));
  };
  in_arena(num_threads, [&] {
    parallel_for(std::int64_t{0}, (call.num_rows() + kRows - 1) / kRows, merge_block);
  });
  return {};
}

}  // namespace fdma

#endif
