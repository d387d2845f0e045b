// The score by its definition, one pair of query and key at a time, for the checks of results. It
// shares no code with the backends, the random numbers of dropout among it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/attention.hpp"
#include "run/checked_rows.hpp"

namespace fdma::maskc {

/// A query of a head and a key.
struct Pair {
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

/// Philox4x32 with 7 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
std::array<std::uint32_t, 4> philox7(std::array<std::uint32_t, 4> counter,
                                     std::array<std::uint32_t, 2> key);

/// False for the pairs that dropout drops: those whose random word is below the rate times 2^32. A
/// pair's word is one of the four of its block of Philox.
bool is_kept(const Dropout& dropout, std::int64_t heads_q, const Pair& pair);

/// The score of one call. Borrows the tensors. T is the precision: double is the reference, float the
/// yardstick.
class ScoreDefinition {
 public:
  template <class Tensors>
  ScoreDefinition(const AttentionShape& shape, const Tensors& tensors,
                  const AttentionOptions& options)
      : shape_(shape),
        key_bias_(tensors.key_bias),
        bias_(tensors.bias),
        alibi_slopes_(tensors.alibi_slopes),
        relative_(tensors.relative),
        sinks_(tensors.sinks),
        options_(options) {}

  /// The logit of a scaled product.
  template <class T>
  T logit(T product, const Pair& pair) const {
    return capped(product, static_cast<T>(options_.softcap)) + added<T>(pair);
  }
  /// The derivative of the logit by the scaled product.
  template <class T>
  T slope(T product) const {
    return slope_of_capped(product, static_cast<T>(options_.softcap));
  }
  /// The factor of the weights of a row by its sink. The weights add up to 1 without the sink.
  template <class T>
  T share_of_keys(T lse, std::int64_t batch, std::int64_t head, std::int64_t query) const {
    if (sinks_.data == nullptr || lse == -std::numeric_limits<T>::infinity()) return 1;
    return 1 / (1 + std::exp(static_cast<T>(sink(batch, head, query)) - lse));
  }
  /// The weight of the sink itself.
  template <class T>
  T share_of_sink(T lse, std::int64_t batch, std::int64_t head, std::int64_t query) const {
    if (sinks_.data == nullptr || lse == -std::numeric_limits<T>::infinity()) return 0;
    return 1 / (1 + std::exp(lse - static_cast<T>(sink(batch, head, query))));
  }
  /// What dropout multiplies the weight of a pair by: 0 or 1 / (1 - rate).
  template <class T>
  T kept(const Pair& pair) const {
    if (options_.dropout.rate <= 0) return 1;
    return is_kept(options_.dropout, shape_.heads_q, pair)
               ? 1 / (1 - static_cast<T>(options_.dropout.rate))
               : 0;
  }

  /// The element of a row of relative that a pair adds.
  std::int64_t relative_index(const Pair& pair) const;

 private:
  std::int64_t distance(const Pair& pair) const {  // k - pos
    return pair.key - (pair.query + shape_.kv_len(pair.batch) - shape_.q_len(pair.batch));
  }
  float sink(std::int64_t batch, std::int64_t head, std::int64_t query) const;

  template <class T>
  T added(const Pair& pair) const {
    T sum = 0;
    for (const float each : terms(pair)) sum += static_cast<T>(each);
    if (alibi_slopes_.data == nullptr) return sum;
    return sum - static_cast<T>(alibi_slope(pair)) * static_cast<T>(std::abs(distance(pair)));
  }
  /// Of key_bias, bias and relative; 0 for those that are not there.
  std::array<float, 3> terms(const Pair& pair) const;
  float alibi_slope(const Pair& pair) const;

  const AttentionShape& shape_;
  TensorView key_bias_, bias_, alibi_slopes_, relative_, sinks_;
  AttentionOptions options_;
};

}  // namespace fdma::maskc
