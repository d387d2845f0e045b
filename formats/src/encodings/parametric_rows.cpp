// Rows and bands of a parametric mask.
//
// Inside one document a row's keys are at most two ranges: one from the first key of document and
// padding to the end of prefix or sink, and the window around pos. Each bound is a minimum or
// maximum of constants and of pos + constant. The choice may change only where a moving bound meets
// a constant. Between two such rows everything moves linearly, so one band describes it. A document
// has at most eight such meetings, whatever its length.
#include "encodings/parametric_rows.hpp"

#include <algorithm>
#include <vector>

namespace fdma {
namespace {

// Farther than any key from any pos, and far from overflow.
constexpr std::int64_t kFar = std::int64_t{1} << 50;

std::int64_t clamp_distance(std::int64_t x) { return std::clamp(x, -kFar, kFar); }

// The keys of [begin, end) that row `pos` sees.
RowKeys keys_in(const ParametricMask& mask, std::int64_t pos, std::int64_t begin,
                std::int64_t end) {
  const std::int64_t window_begin = std::max(begin, pos - clamp_distance(mask.left));
  const std::int64_t window_end = std::min(end, pos + clamp_distance(mask.right) + 1);
  const std::int64_t head_end =
      std::min(end, std::max(mask.prefix, std::min(mask.sink, window_end)));
  RowKeys keys;
  const auto add = [&](std::int64_t b, std::int64_t e) {
    if (b >= e) return;
    if (keys.count > 0 && b <= keys.end[0]) {
      keys.end[0] = std::max(keys.end[0], e);
      return;
    }
    keys.begin[static_cast<std::size_t>(keys.count)] = b;
    keys.end[static_cast<std::size_t>(keys.count)] = e;
    ++keys.count;
  };
  add(begin, head_end);
  add(window_begin, window_end);
  return keys;
}

}  // namespace

RowKeys row_keys(const ParametricMask& mask, std::int64_t q) {
  const std::int64_t pos = q + mask.pos_offset;
  std::int64_t begin = mask.kv_begin, end = mask.kv_end;
  if (!mask.cu_seqlens.empty()) {
    const auto next = std::upper_bound(mask.cu_seqlens.begin(), mask.cu_seqlens.end(), pos);
    if (next == mask.cu_seqlens.begin() || next == mask.cu_seqlens.end()) return {};
    begin = std::max(begin, *(next - 1));
    end = std::min(end, *next);
  }
  return begin < end ? keys_in(mask, pos, begin, end) : RowKeys{};
}

RowBands bands_from_parametric(const ParametricMask& mask) {
  BandWriter writer(mask.q_len, mask.kv_len);
  std::vector<std::int64_t> borders;
  // Adds query rows [q_begin, q_end), which see only keys of [begin, end).
  const auto add_rows = [&](std::int64_t q_begin, std::int64_t q_end, std::int64_t begin,
                            std::int64_t end) {
    if (q_begin >= q_end || begin >= end) return;
    borders.assign({q_begin, q_end});
    const auto add_border = [&](std::int64_t q) {
      for (std::int64_t row = q - 1; row <= q + 1; ++row) {
        if (row > q_begin && row < q_end) borders.push_back(row);
      }
    };
    for (const std::int64_t k : {begin, end, mask.prefix, mask.sink}) {
      add_border(k + clamp_distance(mask.left) - mask.pos_offset);
      add_border(k - clamp_distance(mask.right) - mask.pos_offset);
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      const std::int64_t q = borders[i];
      const RowKeys keys = keys_in(mask, q + mask.pos_offset, begin, end);
      if (keys.count == 0) continue;
      std::array<std::int32_t, 2> slope_begin{}, slope_end{};
      if (borders[i + 1] - q > 1) {
        const RowKeys next = keys_in(mask, q + 1 + mask.pos_offset, begin, end);
        for (std::size_t j = 0; j < 2; ++j) {
          slope_begin[j] = static_cast<std::int32_t>(next.begin[j] - keys.begin[j]);
          slope_end[j] = static_cast<std::int32_t>(next.end[j] - keys.end[j]);
        }
      }
      writer.add(q, borders[i + 1], keys, slope_begin, slope_end);
    }
  };
  if (mask.cu_seqlens.empty()) {
    add_rows(0, mask.q_len, mask.kv_begin, mask.kv_end);
    return writer.finish();
  }
  const std::vector<std::int64_t>& cu = mask.cu_seqlens;
  const auto after = std::upper_bound(cu.begin(), cu.end(), mask.pos_offset);
  for (auto d = after == cu.begin() ? after : after - 1; d + 1 < cu.end(); ++d) {
    if (*d - mask.pos_offset >= mask.q_len) break;
    add_rows(std::max<std::int64_t>(*d - mask.pos_offset, 0),
             std::min(*(d + 1) - mask.pos_offset, mask.q_len), std::max(*d, mask.kv_begin),
             std::min(*(d + 1), mask.kv_end));
  }
  return writer.finish();
}

BandWriter::BandWriter(std::int64_t q_len, std::int64_t kv_len) {
  bands_.q_len = q_len;
  bands_.kv_len = kv_len;
}

// Joins the rows to the last band if every bound goes on by 0 or by 1.
bool BandWriter::join(std::int64_t q_begin, std::int64_t q_end, const RowKeys& keys,
                      const std::array<std::int32_t, 2>& slope_begin,
                      const std::array<std::int32_t, 2>& slope_end) {
  if (bands_.bands.empty()) return false;
  RowBand& band = bands_.bands.back();
  if (band.q_end != q_begin || band.num_intervals != keys.count) return false;
  const bool is_moving = band.q_end - band.q_begin > 1;
  const bool is_long = q_end - q_begin > 1;
  std::array<AffineInterval, 2> joined{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(keys.count); ++i) {
    const AffineInterval& a = bands_.intervals[static_cast<std::size_t>(band.first_interval) + i];
    const std::int64_t last = q_begin - 1;
    const std::int64_t step_begin = keys.begin[i] - (a.lo_base + a.lo_slope * last);
    const std::int64_t step_end = keys.end[i] - (a.hi_base + a.hi_slope * last);
    if (step_begin < 0 || step_begin > 1 || step_end < 0 || step_end > 1) return false;
    if (is_moving && (step_begin != a.lo_slope || step_end != a.hi_slope)) return false;
    if (is_long && (step_begin != slope_begin[i] || step_end != slope_end[i])) return false;
    joined[i] = {keys.begin[i] - step_begin * q_begin, keys.end[i] - step_end * q_begin,
                 static_cast<std::int32_t>(step_begin), static_cast<std::int32_t>(step_end)};
  }
  std::copy_n(joined.begin(), keys.count, bands_.intervals.begin() + band.first_interval);
  band.q_end = static_cast<std::int32_t>(q_end);
  return true;
}

void BandWriter::add(std::int64_t q_begin, std::int64_t q_end, const RowKeys& keys,
                     const std::array<std::int32_t, 2>& slope_begin,
                     const std::array<std::int32_t, 2>& slope_end) {
  if (keys.count == 0 || join(q_begin, q_end, keys, slope_begin, slope_end)) return;
  bands_.bands.push_back({static_cast<std::int32_t>(q_begin), static_cast<std::int32_t>(q_end),
                          static_cast<std::int64_t>(bands_.intervals.size()), keys.count});
  for (std::size_t i = 0; i < static_cast<std::size_t>(keys.count); ++i) {
    bands_.intervals.push_back({keys.begin[i] - slope_begin[i] * q_begin,
                                keys.end[i] - slope_end[i] * q_begin, slope_begin[i],
                                slope_end[i]});
  }
}

}  // namespace fdma
