// Gradients of the parts of a score that belong to pairs or rows: key bias, bias, relative table and
// sinks.
//
// What a term of a logit gets is dS of the pair. An element of a key bias belongs to one group of work
// tiles, which one thread runs, and an element of a bias that no axis shares belongs to one pair.
// Other elements get the sum of each work tile, one after the other in the order in which work tiles
// were taken (Turns), so that the result does not depend on the number of threads. Sums are float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "call/backward_call.hpp"
#include "cpu/turns.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::cpu {

struct BackwardRun;

/// The tickets of one work tile for what it adds to dbias and drelative.
struct SumTickets {
  std::int32_t bias = 0, relative = 0;
};

/// The gradients of one call that are sums, and the turns of those who add to them.
struct ScoreGradients {
  /// Sets every element of dbias, drelative and dsinks to 0.
  explicit ScoreGradients(const BackwardRun& run);

  /// Draws the tickets of a work tile, after those of work tiles taken before it. It must not run
  /// concurrently with another call.
  SumTickets draw(const BackwardRun& run, const WorkTile& work_tile);
  std::size_t bias_place(const BackwardRun& run, std::int32_t batch, std::int32_t head,
                         std::int32_t key_tile) const;
  static std::size_t relative_place(const BackwardRun& run, std::int32_t head);

  /// Rounds sums to the types of their tensors, and adds up what sinks get.
  void store(const BackwardRun& run) const;

  bool sums_bias = false;          ///< elements of dbias are sums over several pairs
  PairValues<float> bias_sums{};   ///< where they are added up: dbias, if that is float32
  std::vector<float> bias_memory;  ///< otherwise here, with the extents of dbias
  std::vector<float> sink_rows;    ///< of each row, by BackwardRun::row_index; empty: not wanted
  Turns bias_turns, relative_turns;
};

/// What one thread adds to the gradients of a group of work tiles, in this order: begin_group,
/// begin_keys, then for each query head begin_head, add for each query, and end_head, then end_keys.
class ScoreGradientSums {
 public:
  explicit ScoreGradientSums(BackwardRun& run);

  /// `tickets` are those of the group's work tiles.
  void begin_group(const WorkTile& first, const SumTickets* tickets);
  void begin_keys(std::int64_t first_key, std::size_t num_keys);
  void begin_head(std::int32_t batch, std::int32_t head);
  /// Adds dS of a query and the keys from `row` of the tile on. `distance` is that of the tile's
  /// first key from the query's position.
  void add(const float* ds, std::size_t num_keys, std::int64_t query, std::size_t row,
           std::int64_t distance);
  void end_head();
  void end_keys();

 private:
  void add_to_bias(const float* ds, std::size_t num_keys, std::int64_t query, std::size_t row);
  void add_to_table(const float* ds, std::size_t num_keys, std::int64_t distance);

  BackwardRun& run_;
  WorkTile first_{};
  const SumTickets* tickets_ = nullptr;
  std::int64_t first_key_ = 0;
  std::size_t num_keys_ = 0, block_kv_;
  std::int32_t batch_ = 0, head_ = 0;
  std::vector<float> keys_;  ///< [keys]: dkey_bias, over all heads of the group
  std::vector<float> bias_;  ///< [queries or 1, block_kv]: dbias of the head
  std::int64_t first_query_ = 0, end_query_ = 0;      ///< rows of bias_ that are not 0
  std::vector<double> table_;                         ///< [left + 1 + right]: drelative of the head
  std::int64_t first_element_ = 0, end_element_ = 0;  ///< elements of table_ that are not 0
};

}  // namespace fdma::cpu
