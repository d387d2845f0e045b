#include "run/score_definition.hpp"

#include <algorithm>

#include "run/element_values.hpp"

namespace fdma::maskc {
namespace {

float value_at(const TensorView& tensor, std::array<std::int64_t, 4> place) {
  std::int64_t index = 0;
  for (int d = 0; d < tensor.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    index += place[i] * tensor.strides[i];
  }
  float value = 0;
  load_elements(tensor.data, tensor.dtype, index, 1, &value);
  return value;
}

/// `index`, or 0 along an axis of one element that serves all.
std::int64_t broadcast(std::int64_t index, std::int64_t extent) { return extent == 1 ? 0 : index; }

std::uint32_t low(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
std::uint32_t high(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }

}  // namespace

std::array<std::uint32_t, 4> philox7(std::array<std::uint32_t, 4> counter,
                                     std::array<std::uint32_t, 2> key) {
  constexpr int kPhiloxRounds = 7;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t first = std::uint64_t{0xd2511f53u} * counter[0];
    const std::uint64_t second = std::uint64_t{0xcd9e8d57u} * counter[2];
    counter = {high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1],
               low(first)};
    key = {key[0] + 0x9e3779b9u, key[1] + 0xbb67ae85u};
  }
  return counter;
}

bool is_kept(const Dropout& dropout, std::int64_t heads_q, const Pair& pair) {
  const auto block = [](std::int64_t i) { return static_cast<std::uint32_t>(i / 16 * 8 + i % 8); };
  const auto words =
      philox7({low(dropout.offset), static_cast<std::uint32_t>(pair.batch * heads_q + pair.head),
               block(pair.query), block(pair.key)},
              {low(dropout.seed), high(dropout.seed) ^ high(dropout.offset)});
  const auto which = static_cast<std::size_t>(2 * (pair.query / 8 % 2) + pair.key / 8 % 2);
  return static_cast<double>(words[which]) >= std::round(dropout.rate * 0x1p32);
}

std::int64_t ScoreDefinition::relative_index(const Pair& pair) const {
  const std::int64_t left = options_.relative_left;
  return std::clamp(distance(pair), -left, relative_.extents[1] - 1 - left) + left;
}

float ScoreDefinition::sink(std::int64_t batch, std::int64_t head, std::int64_t query) const {
  if (sinks_.rank == 1) return value_at(sinks_, {head, 0, 0, 0});
  return value_at(sinks_, {batch, head, query, 0});
}

std::array<float, 3> ScoreDefinition::terms(const Pair& pair) const {
  std::array<float, 3> terms{};
  if (key_bias_.data != nullptr) {
    terms[0] = value_at(key_bias_, {pair.batch, pair.head / shape_.group_size(), pair.key, 0});
  }
  if (bias_.data != nullptr) {
    const std::int64_t heads_per_index = shape_.heads_q / bias_.extents[1];
    terms[1] =
        value_at(bias_, {broadcast(pair.batch, bias_.extents[0]), pair.head / heads_per_index,
                         broadcast(pair.query, bias_.extents[2]), pair.key});
  }
  if (relative_.data != nullptr) {
    terms[2] = value_at(relative_,
                        {broadcast(pair.head, relative_.extents[0]), relative_index(pair), 0, 0});
  }
  return terms;
}

float ScoreDefinition::alibi_slope(const Pair& pair) const {
  if (alibi_slopes_.rank == 1) return value_at(alibi_slopes_, {pair.head, 0, 0, 0});
  return value_at(alibi_slopes_, {pair.batch, pair.head, 0, 0});
}

}  // namespace fdma::maskc
