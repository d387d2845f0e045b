// FlashMask's column-wise intervals from and to a mask.
//
// A key's masked rows are at most three runs: two stored runs and, if causal, the rows above the
// diagonal. Their complement in [0, q_len) is the key's list of visible query intervals, which is
// FDMA's column format. Export complements the list again and looks for the smallest form that can
// hold all runs.
#include "fdma/formats/interop/flash_mask.hpp"

#include <algorithm>
#include <array>

#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "interop/checks.hpp"

namespace fdma {
namespace {

using interop::wrong;

// First row that sees key j by causality: rows before it are masked.
std::int64_t diagonal(std::int64_t j, std::int64_t q_len, std::int64_t kv_len) {
  return std::clamp<std::int64_t>(j - (kv_len - q_len), 0, q_len);
}

// The stored runs of one key, empty ones included: LT, then UT.
std::array<Interval, 2> stored_runs(const FlashMask& mask, const std::int32_t* row) {
  const auto end = static_cast<std::int32_t>(mask.q_len);
  if (mask.is_causal) return {{{row[0], mask.num_columns == 2 ? row[1] : end}, {0, 0}}};
  if (mask.num_columns == 2) return {{{row[0], end}, {0, row[1]}}};
  return {{{row[0], row[1]}, {row[2], row[3]}}};
}

Result<void> check(const FlashMask& mask) {
  FDMA_TRY_VOID(interop::check_length("q_len", mask.q_len));
  FDMA_TRY_VOID(interop::check_length("kv_len", mask.kv_len));
  FDMA_TRY_VOID(interop::check_pairs(mask.num_batches, mask.num_heads));
  const std::int64_t c = mask.num_columns;
  if (mask.is_causal ? c != 1 && c != 2 : c != 2 && c != 4) {
    return wrong(fmt::format("startend_row_indices: {} columns, expected {}", c,
                             mask.is_causal ? "1 or 2 with causal" : "2 or 4 without causal"));
  }
  FDMA_TRY_VOID(interop::check_extent("startend_row_indices", mask.indices.size(),
                                      mask.num_batches * mask.num_heads * mask.kv_len, c));
  for (std::size_t i = 0; i < mask.indices.size(); ++i) {
    if (mask.indices[i] >= 0 && mask.indices[i] <= mask.q_len) continue;
    return wrong(fmt::format("startend_row_indices[{}]: {}, expected 0 to {}", i, mask.indices[i],
                             mask.q_len));
  }
  return {};
}

// The visible query intervals of all keys of one (batch, head) pair.
ColumnIntervals columns_of(const FlashMask& mask, std::int64_t pair) {
  ColumnIntervals columns;
  columns.q_len = mask.q_len;
  columns.kv_len = mask.kv_len;
  columns.offsets.reserve(static_cast<std::size_t>(mask.kv_len) + 1);
  columns.offsets.push_back(0);
  for (std::int64_t j = 0; j < mask.kv_len; ++j) {
    const std::int32_t* row = mask.indices.data() + (pair * mask.kv_len + j) * mask.num_columns;
    const std::array<Interval, 2> stored = stored_runs(mask, row);
    const std::int64_t causal = mask.is_causal ? diagonal(j, mask.q_len, mask.kv_len) : 0;
    std::array<Interval, 3> masked{{{0, static_cast<std::int32_t>(causal)}, stored[0], stored[1]}};
    std::sort(masked.begin(), masked.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    std::int32_t next = 0;
    for (const Interval& run : masked) {
      if (run.begin >= run.end) continue;
      if (run.begin > next) columns.intervals.push_back({next, run.begin});
      next = std::max(next, run.end);
    }
    if (next < mask.q_len) {
      columns.intervals.push_back({next, static_cast<std::int32_t>(mask.q_len)});
    }
    columns.offsets.push_back(static_cast<std::int64_t>(columns.intervals.size()));
  }
  return columns;
}

// The form to store a mask in.
struct Form {
  bool is_causal;
  std::int64_t num_columns;
};
constexpr Form kForms[] = {{true, 1}, {true, 2}, {false, 2}, {false, 4}};

// Encodes key j, whose visible intervals are `visible`, as one row of the array. False if the form
// cannot hold it.
bool encode(const Form& form, std::span<const Interval> visible, std::int64_t causal,
            std::int64_t q_len, std::int32_t* out) {
  const auto end = static_cast<std::int32_t>(q_len);
  // Masked runs outside the causal triangle, ascending.
  std::vector<Interval> masked;
  auto next = static_cast<std::int32_t>(form.is_causal ? causal : 0);
  for (const Interval& run : visible) {
    if (run.begin < next) return false;  // a row above the diagonal sees it
    if (run.begin > next) masked.push_back({next, run.begin});
    next = run.end;
  }
  if (next < end) masked.push_back({next, end});
  if (form.is_causal && form.num_columns == 1) {
    out[0] = masked.empty() ? end : masked[0].begin;
    return masked.empty() || (masked.size() == 1 && masked[0].end == end);
  }
  if (form.is_causal) {
    out[0] = masked.empty() ? end : masked[0].begin;
    out[1] = masked.empty() ? end : masked[0].end;
    return masked.size() <= 1;
  }
  Interval lower{end, end}, upper{0, 0};
  if (masked.size() > 2) return false;
  if (masked.size() == 2) {
    upper = masked[0];
    lower = masked[1];
  } else if (masked.size() == 1) {
    const bool is_upper = masked[0].begin == 0 && masked[0].end != end;
    (is_upper ? upper : lower) = masked[0];
  }
  if (form.num_columns == 2) {
    out[0] = lower.begin;
    out[1] = upper.end;
    return lower.end == end && upper.begin == 0;
  }
  out[0] = lower.begin;
  out[1] = lower.end;
  out[2] = upper.begin;
  out[3] = upper.end;
  return true;
}

// The rows of one group in a form, or the first key that the form cannot hold.
std::int64_t encode_group(const Form& form, const ColumnIntervals& columns,
                          std::vector<std::int32_t>& out) {
  out.resize(static_cast<std::size_t>(columns.kv_len * form.num_columns));
  for (std::int64_t j = 0; j < columns.kv_len; ++j) {
    const std::int64_t first = columns.offsets[static_cast<std::size_t>(j)];
    const std::int64_t last = columns.offsets[static_cast<std::size_t>(j) + 1];
    const std::span<const Interval> visible(columns.intervals.data() + first,
                                            static_cast<std::size_t>(last - first));
    if (!encode(form, visible, diagonal(j, columns.q_len, columns.kv_len), columns.q_len,
                out.data() + j * form.num_columns)) {
      return j;
    }
  }
  return -1;
}

}  // namespace

Result<FlashMask> flash_mask_from_block_mask(const BlockMask& mask,
                                             const FlashMaskExportOptions& options) {
  FDMA_TRY_VOID(interop::check_pairs(mask.shape.num_batches, mask.shape.num_heads));
  FDMA_TRY_VOID(interop::check_uniform(mask.shape, "FlashMask"));
  std::vector<Form> forms;
  for (const Form& form : kForms) {
    if (options.is_causal.value_or(form.is_causal) != form.is_causal) continue;
    if (options.num_columns.value_or(form.num_columns) != form.num_columns) continue;
    forms.push_back(form);
  }
  if (forms.empty()) {
    return wrong(fmt::format("num_columns: {}, expected 1 or 2 with causal, 2 or 4 without",
                             options.num_columns.value_or(0)));
  }
  FDMA_TRY(const BlockMask converted, convert(mask, MaskFormat::columns, mask.block));
  const auto& groups = std::get<std::vector<ColumnIntervals>>(converted.groups);
  std::vector<std::vector<std::int32_t>> rows(groups.size());
  std::string reason;
  for (const Form& form : forms) {
    FDMA_TRY_VOID(check_memory(std::ssize(groups) * groups.front().kv_len * form.num_columns * 4,
                               "startend_row_indices"));
    bool fits = true;
    for (std::size_t g = 0; fits && g < groups.size(); ++g) {
      const std::int64_t key = encode_group(form, groups[g], rows[g]);
      if (key < 0) continue;
      fits = false;
      const auto pair =
          std::find(mask.group_of.begin(), mask.group_of.end(), static_cast<std::int32_t>(g)) -
          mask.group_of.begin();
      reason = fmt::format("batch {}, head {}, key {}", pair / mask.shape.num_heads,
                           pair % mask.shape.num_heads, key);
    }
    if (!fits) continue;
    FlashMask flash;
    flash.q_len = mask.shape.q_lens.front();
    flash.kv_len = mask.shape.kv_lens.front();
    flash.num_batches = mask.shape.num_batches;
    flash.num_heads = mask.shape.num_heads;
    flash.is_causal = form.is_causal;
    flash.num_columns = form.num_columns;
    for (const std::int32_t group : mask.group_of) {
      const auto& row = rows[static_cast<std::size_t>(group)];
      flash.indices.insert(flash.indices.end(), row.begin(), row.end());
    }
    return flash;
  }
  return interop::unsupported(
      fmt::format("FlashMask: {}: its masked query rows are more intervals than {} has", reason,
                  forms.size() > 1 ? "the widest form (not causal, 4 columns)" : "this form"));
}

Result<BlockMask> block_mask_from_flash_mask(const FlashMask& mask, BlockShape block,
                                             std::int64_t num_heads) {
  FDMA_TRY_VOID(validate(block));
  FDMA_TRY_VOID(check(mask));
  if (num_heads == 0) num_heads = mask.num_heads;
  FDMA_TRY_VOID(interop::check_pairs(mask.num_batches, num_heads));
  if (num_heads % mask.num_heads != 0) {
    return interop::mismatch(
        fmt::format("num_heads: {}, expected a multiple of the {} heads of "
                    "startend_row_indices",
                    num_heads, mask.num_heads));
  }
  const std::int64_t pairs = mask.kv_len == 0 ? 1 : mask.num_batches * mask.num_heads;
  std::vector<SegmentMask> masks;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    masks.push_back(segment_from_columns(columns_of(mask, pair), block));
  }
  std::vector<std::int32_t> mask_of;
  for (std::int64_t b = 0; b < mask.num_batches; ++b) {
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const std::int64_t pair = b * mask.num_heads + h / (num_heads / mask.num_heads);
      mask_of.push_back(pairs == 1 ? 0 : static_cast<std::int32_t>(pair));
    }
  }
  return make_block_mask({mask.num_batches, num_heads, {mask.q_len}, {mask.kv_len}}, block,
                         std::move(masks), mask_of);
}

}  // namespace fdma
