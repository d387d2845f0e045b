#include "inputs/mask_shape_arguments.hpp"

#include <fmt/format.h>

#include "cli/number_text.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {

Outcome<MaskShape> mask_shape(const Arguments& arguments, const MaskExpr& expr) {
  constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;
  constexpr std::int64_t kMaxPairs = std::int64_t{1} << 24;
  MaskShape shape;
  FDMA_TRY(shape.q_lens, arguments.integers("q-len", 0, kMaxLength));
  FDMA_TRY(shape.kv_lens, arguments.integers("kv-len", 0, kMaxLength));
  if (shape.q_lens.empty()) {
    return usage_failure("--q-len: expected the number of query rows, got nothing");
  }
  if (shape.kv_lens.empty()) shape.kv_lens = shape.q_lens;
  const std::size_t listed = std::max(shape.q_lens.size(), shape.kv_lens.size());
  FDMA_TRY(shape.num_heads, arguments.integer("heads", 1, 1, kMaxCount));
  FDMA_TRY(shape.num_batches,
           arguments.integer("batch", static_cast<std::int64_t>(listed), 1, kMaxCount));
  if (shape.num_batches * shape.num_heads > kMaxPairs) {
    return usage_failure(
        fmt::format("--batch, --heads: expected at most {} (batch, head) pairs, got {}", kMaxPairs,
                    shape.num_batches * shape.num_heads));
  }
  for (const auto& [option, lens] :
       {std::pair{"q-len", &shape.q_lens}, {"kv-len", &shape.kv_lens}}) {
    if (lens->size() == 1 || static_cast<std::int64_t>(lens->size()) == shape.num_batches) continue;
    return usage_failure(fmt::format("--{}: {} lengths, but there are {} batch elements", option,
                                     lens->size(), shape.num_batches));
  }
  if (mentions_variable(expr, "b") && !arguments.has("batch") && listed == 1) {
    return usage_failure(
        "the specification mentions b: give the number of batch elements, --batch N");
  }
  if (mentions_variable(expr, "h") && !arguments.has("heads")) {
    return usage_failure("the specification mentions h: give the number of query heads, --heads N");
  }
  return shape;
}

std::string summary_text(const std::string& file, const std::string& name, const BlockMask& mask,
                         const MaskStatistics& statistics) {
  const TileCounts& tiles = statistics.tiles;
  std::string pairs;
  if (mask.shape.num_batches * mask.shape.num_heads > 1) {
    pairs = fmt::format(", {} x {} (batch x heads) in {}", mask.shape.num_batches,
                        mask.shape.num_heads, plural(mask.num_groups(), "group"));
  }
  return fmt::format(
      "{}:/masks/{}\n"
      "  {}{}, {} in blocks of {} x {}, {}\n"
      "  {} of {} pairs allowed ({}); tiles: {} full, {} partial, {} empty\n  ",
      file, name, lengths_text(mask.shape), pairs, to_string(mask.format()), mask.block.block_q,
      mask.block.block_kv, bytes_text(mask.size_bytes()), count_text(tiles.allowed_pairs),
      count_text(statistics.total_pairs),
      percent_text(static_cast<double>(tiles.allowed_pairs),
                   static_cast<double>(statistics.total_pairs)),
      count_text(tiles.full), count_text(tiles.partial), count_text(tiles.empty));
}

}  // namespace fdma::maskc
