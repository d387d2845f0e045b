// A boolean table of one to four dimensions each of whose indices depends on the query or on the
// key only: tiles(@t, m, n), bits(@t), @seen[q, k - 3000].
//
// The flat index splits into a part per query and a part per key, so a row of cells is one row of
// the table spread by the key part. It is packed 64 bytes at a time where that part counts up by
// one, filled run by run where the part has long constant runs (k // 64), and gathered otherwise.
// Rows are cached by query part where few are distinct.
#include <algorithm>
#include <cstring>

#include "boxes/row_atom.hpp"
#include "boxes/row_cache.hpp"
#include "boxes/tile_pyramid.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma::box {
namespace {

constexpr std::int64_t kMaxCacheBytes = std::int64_t{64} << 20;
/// The shortest average run for which filling is faster than gathering.
constexpr std::int64_t kMinRun = 8;

/// The part of the flat index that one axis gives, with the positions where it is out of range.
struct IndexPart {
  std::vector<std::int64_t> offsets;
  std::vector<std::uint64_t> undefined;  ///< empty if all positions are defined
};

class TableAtom final : public RowAtom {
 public:
  TableAtom(const BoxProgram& program, const IrNode& node, BlockShape block)
      : node_(node), tables_(program.tables()) {
    const IrTable& table = program.tables().table(node.value);
    bytes_ = static_cast<const std::uint8_t*>(table.data);
    kv_len_ = program.kv_len();
    words_per_row_ = (kv_len_ + 63) / 64;
    queries_.offsets.assign(static_cast<std::size_t>(program.q_len()), 0);
    keys_.offsets.assign(static_cast<std::size_t>(words_per_row_ * 64), 0);
    std::int64_t stride = 1;
    for (int d = node.num_children - 1; d >= 0; --d) {
      const IrId index = node.children[d];
      const bool is_key = program.facts(index).depends == kOnK;
      const IntegerVector vector = integer_vector(program, index, is_key ? Axis::key : Axis::query);
      IndexPart& part = is_key ? keys_ : queries_;
      for (std::int64_t i = 0; i < vector.length; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::int64_t value = vector.values[at];
        if (!vector.is_undefined(i) && value >= 0 && value < table.extents[d]) {
          part.offsets[at] += value * stride;
          continue;
        }
        if (part.undefined.empty()) {
          part.undefined.assign(static_cast<std::size_t>((vector.length + 63) / 64 + 9), 0);
        }
        part.undefined[at / 64] |= std::uint64_t{1} << (at % 64);
      }
      is_key_[d] = is_key;
      ranges_[d] =
          make_pyramid(vector, is_key ? block.block_kv : block.block_q, is_key ? kAllLevels : 1);
      stride *= table.extents[d];
    }
    // Undefined positions read entry 0 of the table, if there is one, and are masked.
    clear_undefined(queries_);
    clear_undefined(keys_);
    defined_keys_ = keys_.undefined;
    for (std::uint64_t& word : defined_keys_) word = ~word;
    find_runs();
    cache_ = make_row_cache(program, queries_.offsets, 2, kMaxCacheBytes);
  }

  bool may_be_undefined() const override {
    return !queries_.undefined.empty() || !defined_keys_.empty();
  }
  std::unique_ptr<AtomScratch> make_scratch(std::int64_t max_words) const override {
    return std::make_unique<Scratch>(max_words);
  }

  Planes row(const RowBlock& block, AtomScratch& base) const override {
    auto& scratch = static_cast<Scratch&>(base);
    if (is_undefined_row(block.q)) return {kNone, kNone};
    const std::int64_t offset = queries_.offsets[static_cast<std::size_t>(block.q)];
    const std::uint64_t* words = nullptr;
    if (!cache_.empty() && block.fills_caches) {
      words =
          cache_.get(block.q, [&](std::uint64_t* out) { compute(out, offset, 0, words_per_row_); });
      if (words != nullptr) words += block.first_word;
    }
    if (words == nullptr) {
      compute(scratch.holds.data(), offset, block.first_word, block.num_words);
      words = scratch.holds.data();
    }
    const Plane holds = plane_of(words);
    if (defined_keys_.empty()) return defined(holds);
    const Plane exists = plane_of(defined_keys_.data() + block.first_word);
    const RowKernels& kernels = row_kernels();
    kernels.and_rows(scratch.is_true.data(), holds.bits, 0, exists.bits, 0, block.num_words);
    kernels.and_rows(scratch.is_false.data(), holds.bits, ~std::uint64_t{0}, exists.bits, 0,
                     block.num_words);
    return {plane_of(scratch.is_true.data()), plane_of(scratch.is_false.data())};
  }

  Outcomes outcomes(const TileBox& box, AtomScratch&) const override {
    NodeRange indices[4];
    for (int d = 0; d < node_.num_children; ++d) {
      indices[d] =
          is_key_[d] ? ranges_[d].at(box.level, box.index) : ranges_[d].at(0, box.tile_row);
    }
    return tables_.lookup(node_.value, indices).outcomes();
  }

  void mark_changes(std::vector<std::uint8_t>& changed) const override {
    for (std::size_t q = 1; q < changed.size(); ++q) {
      changed[q] |= queries_.offsets[q] != queries_.offsets[q - 1];
    }
    if (queries_.undefined.empty()) return;
    for (std::size_t q = 1; q < changed.size(); ++q) {
      const auto at = static_cast<std::int64_t>(q);
      changed[q] |= is_undefined_row(at) != is_undefined_row(at - 1);
    }
  }

 private:
  struct Scratch final : AtomScratch {
    explicit Scratch(std::int64_t max_words)
        : holds(static_cast<std::size_t>(max_words)),
          is_true(static_cast<std::size_t>(max_words)),
          is_false(static_cast<std::size_t>(max_words)) {}
    std::vector<std::uint64_t> holds;
    std::vector<std::uint64_t> is_true;
    std::vector<std::uint64_t> is_false;
  };

  static void clear_undefined(IndexPart& part) {
    for (std::size_t i = 0; i < part.undefined.size() * 64 && i < part.offsets.size(); ++i) {
      if (((part.undefined[i / 64] >> (i % 64)) & 1) != 0) part.offsets[i] = 0;
    }
  }

  bool is_undefined_row(std::int64_t q) const {
    return !queries_.undefined.empty() &&
           ((queries_.undefined[static_cast<std::size_t>(q / 64)] >> (q % 64)) & 1) != 0;
  }

  void find_runs() {
    is_ramp_ = keys_.undefined.empty();
    run_begins_.push_back(0);
    for (std::size_t k = 1; k < static_cast<std::size_t>(kv_len_); ++k) {
      const std::int64_t step = keys_.offsets[k] - keys_.offsets[k - 1];
      is_ramp_ = is_ramp_ && step == 1;
      if (step != 0) run_begins_.push_back(static_cast<std::int32_t>(k));
    }
    const auto num_runs = static_cast<std::int64_t>(run_begins_.size());
    if (num_runs * kMinRun > kv_len_) run_begins_.clear();
    run_begins_.shrink_to_fit();
  }

  void compute(std::uint64_t* out, std::int64_t offset, std::int64_t first_word,
               std::int64_t num_words) const {
    const std::uint8_t* row = bytes_ + offset;
    const std::int64_t first = 64 * first_word;
    const std::int64_t end = std::min(kv_len_, first + 64 * num_words);
    if (is_ramp_) {
      const std::uint8_t* from = row + keys_.offsets[0] + first;
      const std::int64_t whole = (end - first) / 64;
      row_kernels().non_zero_bytes(out, from, whole);
      if (whole == num_words) return;
      std::uint64_t word = 0;
      for (std::int64_t i = 64 * whole; i < end - first; ++i) {
        word |= std::uint64_t{from[i] != 0} << (i % 64);
      }
      out[whole] = word;
      return;
    }
    if (!run_begins_.empty()) {
      std::fill_n(out, num_words, 0);
      auto run = std::upper_bound(run_begins_.begin(), run_begins_.end(), first) - 1;
      for (std::int64_t at = first; at < end; ++run) {
        const std::int64_t next =
            run + 1 == run_begins_.end() ? end : std::min<std::int64_t>(end, run[1]);
        if (row[keys_.offsets[static_cast<std::size_t>(*run)]] != 0) {
          set_bits(out, at - first, next - first);
        }
        at = next;
      }
      return;
    }
    for (std::int64_t w = 0; w < num_words; ++w) {
      const std::int64_t* offsets = keys_.offsets.data() + first + 64 * w;
      std::uint64_t word = 0;
      for (int i = 0; i < 64; ++i) word |= std::uint64_t{row[offsets[i]] != 0} << i;
      out[w] = word;
    }
  }

  IrNode node_;
  const TableRanges& tables_;
  const std::uint8_t* bytes_ = nullptr;
  std::int64_t kv_len_ = 0;
  std::int64_t words_per_row_ = 0;
  IndexPart queries_;
  IndexPart keys_;
  bool is_key_[4] = {};
  TilePyramid<NodeRange> ranges_[4];
  std::vector<std::uint64_t> defined_keys_;  ///< empty if all keys are defined
  bool is_ramp_ = false;
  std::vector<std::int32_t> run_begins_;  ///< empty if runs are short
  RowCache cache_;
};

}  // namespace

std::unique_ptr<RowAtom> make_table_atom(const BoxProgram& program, IrId id, BlockShape block) {
  const IrNode& node = program.node(id);
  if (node.op != IrOp::test) return nullptr;
  const IrTable& table = program.tables().table(node.value);
  if (table.is_runs() || table.dtype != DType::boolean) return nullptr;
  for (int d = 0; d < node.num_children; ++d) {
    if (program.facts(node.children[d]).depends == (kOnQ | kOnK)) return nullptr;
    if (table.extents[d] == 0) return nullptr;
  }
  return std::make_unique<TableAtom>(program, node, block);
}

}  // namespace fdma::box
