// The program as the box engine uses it: loops unrolled, constants folded, and for every node its
// dependencies and the range of its values.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"
#include "lower/work_meter.hpp"

namespace fdma::box {

struct IntegerVector;

/// The variables that a node's value depends on.
inline constexpr std::uint8_t kOnQ = 1;
inline constexpr std::uint8_t kOnK = 2;

/// Facts about one node that hold for all cells of the mask.
struct NodeFacts {
  std::uint8_t depends = 0;  ///< kOnQ | kOnK
  bool is_open = false;      ///< mentions the variable of an enclosing loop
  /// The value is the same at (q, k) and (q + 1, k + 1); it is thus a function of k - q.
  bool is_diagonal = false;
  /// Equal to slope_q * q + slope_k * k + offset at every cell.
  bool is_linear = false;
  std::int64_t slope_q = 0;
  std::int64_t slope_k = 0;
  int loop_depth = 0;  ///< most loops on a path below the node, including it
  NodeRange range;     ///< over all cells (and all values of enclosing loops)
};

/// Deepest nesting of any / all that stay loops, and most loop variables that one node mentions.
inline constexpr int kMaxLoopDepth = 256;

/// The best way to store a closed node: as one number, per query, per key, per diagonal, or not at
/// all.
enum class Axis : std::uint8_t { none, query, key, diagonal, cell };

class BoxProgram {
 public:
  /// Prepares a program. It must outlive this object, and so must the meter; without a meter
  /// nothing stops the work. Cost: O(nodes, loops unrolled), plus a scan of each integer table.
  explicit BoxProgram(const IrProgram& source, WorkMeter* meter = nullptr);

  BoxProgram(const BoxProgram&) = delete;
  BoxProgram& operator=(const BoxProgram&) = delete;

  /// The meter of the work that evaluation may still do; null: no limit.
  WorkMeter* meter() const { return meter_; }
  bool must_stop() const { return meter_ != nullptr && meter_->must_stop(); }
  bool has_stopped() const { return meter_ != nullptr && meter_->has_stopped(); }
  /// Bytes that the row caches of all atoms together may still take.
  std::int64_t cache_bytes_left() const { return cache_bytes_left_.load(); }
  /// Takes some of them; false, and none, if fewer are left. Any thread may ask.
  bool take_cache_bytes(std::int64_t bytes) const {
    std::int64_t left = cache_bytes_left_.load();
    while (left >= bytes && !cache_bytes_left_.compare_exchange_weak(left, left - bytes)) {
    }
    return left >= bytes;
  }
  /// The place where shared_integer_vector (axis_vector.hpp) keeps its result; for one thread only.
  std::weak_ptr<const IntegerVector>& known_vector(IrId id) const { return vectors_[id]; }
  /// Keeps a vector for users to come, in place of the one that was kept longest. forget_vectors
  /// ends this.
  void keep_vector(std::shared_ptr<const IntegerVector> vector) const {
    kept_vectors_[num_kept_++ % kept_vectors_.size()] = std::move(vector);
  }
  void forget_vectors() const { kept_vectors_.fill(nullptr); }

  std::int64_t q_len() const { return q_len_; }
  std::int64_t kv_len() const { return kv_len_; }
  std::int64_t num_diagonals() const { return q_len_ + kv_len_ - 1; }
  IrId root() const { return root_; }
  IrId q_node() const { return q_node_; }
  IrId k_node() const { return k_node_; }
  IrId num_nodes() const { return static_cast<IrId>(nodes_.size()); }
  const IrNode& node(IrId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  const NodeFacts& facts(IrId id) const { return facts_[static_cast<std::size_t>(id)]; }
  Axis axis(IrId id) const;
  const TableRanges& tables() const { return tables_; }
  /// True if any / all nest deeper than the engine follows. The program must not be used then.
  bool is_too_nested() const { return is_too_nested_; }
  /// The loop variables that a node mentions and no loop below it binds, ascending.
  std::span<const std::int64_t> open_loops(IrId id) const;

  /// A node with this operator, children and value: an equal one that exists, or a new one.
  IrId intern(IrNode node);
  IrId intern_constant(std::int64_t value);

 private:
  struct NodeHash {
    std::size_t operator()(const IrNode& node) const;
  };
  struct NodeEqual {
    bool operator()(const IrNode& a, const IrNode& b) const;
  };
  NodeFacts derive(const IrNode& node);

  static constexpr std::int64_t kMaxCacheBytes = std::int64_t{96} << 20;

  std::optional<IrProgram> unrolled_;
  std::int64_t q_len_;
  std::int64_t kv_len_;
  WorkMeter* meter_;
  mutable std::atomic<std::int64_t> cache_bytes_left_ = kMaxCacheBytes;
  mutable std::unordered_map<IrId, std::weak_ptr<const IntegerVector>> vectors_;
  mutable std::array<std::shared_ptr<const IntegerVector>, 8> kept_vectors_;
  mutable std::size_t num_kept_ = 0;
  TableRanges tables_;
  std::vector<IrNode> nodes_;
  std::vector<NodeFacts> facts_;
  std::vector<std::vector<std::int64_t>> open_loops_;  ///< empty vectors for closed nodes
  std::unordered_map<IrNode, IrId, NodeHash, NodeEqual> ids_;
  std::unordered_map<std::int64_t, NodeRange> loop_ranges_;
  bool is_too_nested_ = false;
  IrId root_ = -1;
  IrId q_node_ = -1;
  IrId k_node_ = -1;
};

}  // namespace fdma::box
