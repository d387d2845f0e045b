#include "mask_check.hpp"

#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cstddef>
#include <variant>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/dense_bits.hpp"
#include "fdma/formats/segment_mask.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "oracle.hpp"

namespace fdma::differential {
namespace {

using Cells = std::vector<std::uint8_t>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The cells of a segment mask, tile by tile, by the documented meaning of its arrays.
Cells cells_of(const SegmentMask& mask) {
  Cells cells(index(mask.q_len * mask.kv_len), 0);
  std::vector<std::uint64_t> words(index(mask.words_per_bitmap()));
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    for (const TileSegment& segment : segments) {
      for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
        tile_cells(mask, segment, row, col, words.data());
        for (std::int64_t r = 0; r < mask.block.block_q; ++r) {
          for (std::int64_t c = 0; c < mask.block.block_kv; ++c) {
            const std::int64_t bit = r * mask.block.block_kv + c;
            if ((words[index(bit / 64)] >> (bit % 64) & 1) == 0) continue;
            const std::int64_t q = std::int64_t{row} * mask.block.block_q + r;
            const std::int64_t k = std::int64_t{col} * mask.block.block_kv + c;
            if (q < mask.q_len && k < mask.kv_len)
              cells[index(q * mask.kv_len + k)] = 1;
            else
              cells.assign(1, 3);  // a bit that does not exist: equal to nothing
          }
        }
      }
    }
  });
  return cells;
}

Cells cells_of(const DenseBits& mask) {
  Cells cells;
  cells.reserve(index(mask.q_len * mask.kv_len));
  for (std::int64_t q = 0; q < mask.q_len; ++q)
    for (std::int64_t k = 0; k < mask.kv_len; ++k) cells.push_back(mask.at(q, k) ? 1 : 0);
  return cells;
}

template <class Group>
std::string compare_cells(const char* what, const BlockMask& mask, const std::vector<Group>& groups,
                          const Expectation& expected) {
  std::vector<Cells> cells;
  for (const Group& group : groups) cells.push_back(cells_of(group));
  for (std::int64_t b = 0; b < expected.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < expected.shape.num_heads; ++h) {
      const Cells& got = cells[index(mask.group(b, h))];
      const Cells& wanted = expected.cells[index(b * expected.shape.num_heads + h)];
      if (got == wanted) continue;
      if (got.size() != wanted.size())
        return fmt::format("{}: b {}, h {}: {} cells, expected {}\n", what, b, h, got.size(),
                           wanted.size());
      const auto differs = std::mismatch(got.begin(), got.end(), wanted.begin()).first;
      const std::int64_t cell = differs - got.begin();
      const std::int64_t kv_len = expected.shape.kv_len(b);
      return fmt::format("{}: b {}, h {}: cell q = {}, k = {} is {}, expected {}\n", what, b, h,
                         cell / kv_len, cell % kv_len, int{*differs}, int{wanted[index(cell)]});
    }
  }
  return {};
}

const char* name_of(LoweringEngine engine) {
  return engine == LoweringEngine::automatic  ? "automatic"
         : engine == LoweringEngine::interval ? "interval"
         : engine == LoweringEngine::periodic ? "periodic"
                                              : "box";
}

bool same_arrays(const BlockMask& a, const BlockMask& b) {
  return a.group_of == b.group_of && a.shape == b.shape &&
         std::get<0>(a.groups) == std::get<0>(b.groups);
}

std::string check_formats(const BlockMask& mask, const Expectation& expected, CheckCounts& counts) {
  std::string report;
  for (const MaskFormat format : kMaskFormats) {
    if (format == MaskFormat::segment) continue;
    const std::string name(to_string(format));
    const Result<BlockMask> there = convert(mask, format, mask.block);
    if (!there) {
      const bool may_decline =
          format == MaskFormat::parametric && there.error().code == ErrorCode::unsupported;
      if (!may_decline) report += fmt::format("to {}: {}\n", name, there.error().message);
      continue;
    }
    if (format == MaskFormat::parametric) ++counts.in_parametric_form;
    if (const auto valid = validate(*there, ValidationLevel::canonical); !valid)
      report += fmt::format("{}: {}\n", name, valid.error().message);
    if (const auto* dense = std::get_if<std::vector<DenseBits>>(&there->groups))
      report += compare_cells("dense", *there, *dense, expected);
    const Result<BlockMask> back = convert(*there, MaskFormat::segment, mask.block);
    if (!back)
      report += fmt::format("from {}: {}\n", name, back.error().message);
    else if (!same_arrays(*back, mask))
      report += fmt::format("from {}: other arrays than were converted\n", name);
  }
  return report;
}

// The error of a mask with an undefined cell names the first one of the pair that it names.
std::string check_undefined(const char* engine, const Result<BlockMask>& mask,
                            const Expectation& expected) {
  if (mask) return fmt::format("{}: compiled, but a cell is undefined\n", engine);
  if (mask.error().code != ErrorCode::invalid_argument)
    return fmt::format("{}: undefined cell: wrong code: {}\n", engine, mask.error().message);
  for (std::size_t pair = 0; pair < expected.cells.size(); ++pair) {
    const Cells& cells = expected.cells[pair];
    const auto first = std::find(cells.begin(), cells.end(), std::uint8_t{2});
    if (first == cells.end()) continue;
    const auto b = static_cast<std::int64_t>(pair) / expected.shape.num_heads;
    const std::int64_t kv_len = expected.shape.kv_len(b), cell = first - cells.begin();
    if (mask.error().message.find(fmt::format("q = {}, k = {}", cell / kv_len, cell % kv_len)) !=
        std::string::npos)
      return {};
  }
  return fmt::format("{}: the error names no first undefined cell: {}\n", engine,
                     mask.error().message);
}

}  // namespace

Expectation expect_mask(const MaskExpr& expr, const Tables& tables, const MaskShape& shape) {
  Expectation expected;
  expected.shape = shape;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      auto cells = reference::oracle_cells(expr, tables, shape, b, h);
      if (!cells) {
        expected.is_error = true;
        return expected;
      }
      expected.has_undefined |= reference::has_undefined_cell(*cells);
      expected.cells.push_back(*std::move(cells));
    }
  }
  return expected;
}

std::string check_mask(const MaskExpr& expr, const Tables& tables, const Expectation& expected,
                       BlockShape block, const CheckOptions& options, CheckCounts& counts) {
  ++counts.masks;
  const Result<MaskIr> ir = fdma::bind(expr, tables, expected.shape);
  if (!ir || expected.is_error)
    return ir.has_value() != expected.is_error
               ? std::string{}
               : fmt::format("bind: {}\n",
                             ir ? "no error, but the oracle has one" : ir.error().message);
  for (const Cells& cells : expected.cells) counts.cells += static_cast<std::int64_t>(cells.size());
  counts.undefined += expected.has_undefined ? 1 : 0;

  LowerOptions lowering;
  lowering.block = block;
  lowering.num_threads = 2;
  lowering.engine = LoweringEngine::box;
  const Result<BlockMask> box = lower(*ir, lowering);
  if (expected.has_undefined) {
    std::string report = check_undefined("box", box, expected);
    lowering.engine = LoweringEngine::automatic;
    report += check_undefined("automatic", lower(*ir, lowering), expected);
    for (const LoweringEngine engine : {LoweringEngine::interval, LoweringEngine::periodic}) {
      lowering.engine = engine;
      if (lower(*ir, lowering))
        report += fmt::format("{}: compiled, but a cell is undefined\n", name_of(engine));
    }
    return report;
  }
  if (!box) return fmt::format("box: {}\n", box.error().message);
  std::string report =
      compare_cells("box", *box, std::get<std::vector<SegmentMask>>(box->groups), expected);
  if (options.canonical)
    if (const auto valid = validate(*box, ValidationLevel::canonical); !valid)
      report += fmt::format("box: {}\n", valid.error().message);

  for (const LoweringEngine engine :
       {LoweringEngine::automatic, LoweringEngine::interval, LoweringEngine::periodic}) {
    lowering.engine = engine;
    Result<BlockMask> other = lower(*ir, lowering);
    if (!other) {
      const bool may_decline =
          engine != LoweringEngine::automatic && other.error().code == ErrorCode::unsupported;
      if (!may_decline) report += fmt::format("{}: {}\n", name_of(engine), other.error().message);
      continue;
    }
    if (engine == LoweringEngine::interval) ++counts.in_interval_form;
    // Masks with patterns have other arrays; written out they must not.
    for (SegmentMask& mask : std::get<std::vector<SegmentMask>>(other->groups)) {
      if (mask.has_patterns()) mask = expand_patterns(mask);
    }
    if (same_arrays(*other, *box)) continue;
    const std::string cells = compare_cells(
        name_of(engine), *other, std::get<std::vector<SegmentMask>>(other->groups), expected);
    report += cells.empty()
                  ? fmt::format("{}: right cells, but other arrays than box\n", name_of(engine))
                  : cells;
  }
  if (options.threads) {
    // Machines with fewer cores would give fewer threads than asked for.
    const tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 8);
    lowering.engine = LoweringEngine::box;
    for (const int num_threads : {1, 5}) {
      lowering.num_threads = num_threads;
      const Result<BlockMask> again = lower(*ir, lowering);
      if (!again || !same_arrays(*again, *box))
        report += fmt::format("box: {} threads give another result\n", num_threads);
    }
  }
  if (options.formats) report += check_formats(*box, expected, counts);
  return report;
}

}  // namespace fdma::differential
