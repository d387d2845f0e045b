// Turns the values of a dense dataset into bits, tile rows and masks.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fdma/io/dense_dataset.hpp"
#include "io/dense/element.hpp"
#include "io/dense/geometry.hpp"
#include "io/dense/plane.hpp"

namespace fdma::io {

using CellIndex = std::array<std::int64_t, 4>;  // b, h, q, k

/// Values of a box of cells, in memory.
struct BoxValues {
  CellIndex begin;
  CellIndex count;
  const std::byte* values = nullptr;
  CellIndex strides;  ///< bytes from value to value; that of k is the size of a value
};

/// Takes the slabs of a geometry in their order and makes a mask of them.
///
/// Example     consumer.begin_slab(slab);
///             for (boxes of the slab, in parallel) consumer.pack(values);
///             consumer.end_slab(slab);
/// Threads     several threads may call pack at once for different cells of the current slab
class SlabConsumer {
 public:
  /// `clears_rows`: boxes share words of bits, so these must be 0 when a slab begins.
  SlabConsumer(const DenseElement& element, const DenseGeometry& geometry,
               const DenseReadOptions& options, bool clears_rows);

  void begin_slab(const Slab& slab);
  /// Packs with vector code, from values as they are in the file.
  void pack(const BoxValues& box);
  /// Packs one value at a time in order, from values of element.memory_type().
  void pack_plainly(const BoxValues& box);
  /// Keeps the first error in the order of cells. Reading goes on to the end of the slab.
  void fail(const CellIndex& begin, Error error);
  void end_slab(const Slab& slab);

  /// True if nothing unread can change the outcome: there is an error, or a bad cell that comes
  /// before every unread cell.
  bool is_settled(const Slab& slab) const;
  /// The mask, when all slabs have ended. Masks without cells have no slabs.
  Result<BlockMask> finish(const std::string& where) &&;

 private:
  std::int64_t q_len() const;
  void open_planes(const Slab& slab);
  void close_planes(const Slab& slab);
  std::int32_t intern(SegmentMask mask);
  void note_bad(const CellIndex& cell, std::string complaint);
  void check_size();
  std::size_t plane_of(std::int64_t b, std::int64_t h) const;

  const DenseElement& element_;
  const DenseGeometry& geometry_;
  const DenseReadOptions& options_;
  bool clears_rows_;
  Slab slab_{};                     // the current one
  std::vector<DensePlane> planes_;  // of the current group, heads fastest
  std::vector<SegmentMask> masks_;  // distinct, in order of arrival
  std::int64_t masks_bytes_ = 0;
  std::vector<std::int32_t> group_of_;
  std::mutex mutex_;  // guards the members below
  struct Finding {
    CellIndex cell{};
    std::string complaint;
  };
  std::optional<Finding> bad_;
  struct Failure {
    CellIndex begin{};
    Error error;
  };
  std::optional<Failure> failure_;
};

}  // namespace fdma::io
