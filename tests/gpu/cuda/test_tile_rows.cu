// The ordered tile rows and the mask fragments of tiles that closed-form plans of either direction
// make on the device. They are compared with the closed forms on the host, for the lengths and
// documents of a call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "backend/closed_form_cases.hpp"
#include "cuda/device_plan.hpp"
#include "cuda/mask_fragments.cuh"
#include "cuda/tile_rows.hpp"
#include "device_array.hpp"
#include "gpu_fixture.hpp"
#include "plan/closed_form.hpp"
#include "plan/plan_forms.hpp"
#include "ptx/mbarrier.cuh"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using testing::pick;

// The part of a kernel's parameters that masks need.
template <bool kIsTransposed_>
struct MaskParams {
  static constexpr bool kIsTransposed = kIsTransposed_;
  gpu::PlanArrays plan;
  gpu::RunTimeLengths lengths;
};

struct MaskedTile {
  std::int32_t batch, tile_row, column_tile;
};

// One warp for each tile broadcasts the tile row as loading threads do, and makes the mask
// fragments.
template <class Params>
__global__ void make_fragments(const Params p, const gpu::TileRow* rows, const MaskedTile* tiles,
                               std::uint32_t* words) {
  __shared__ __align__(16) std::uint32_t slot[512];
  __shared__ __align__(16) std::uint32_t band[8];
  using Tile = std::conditional_t<Params::kIsTransposed, gpu::TileGroup, gpu::BroadcastTile>;
  __shared__ __align__(16) Tile work_tile;
  const int lane = static_cast<int>(threadIdx.x);
  const MaskedTile at = tiles[blockIdx.x];
  const std::uint32_t band_address = ptx::shared_address(band);
  const int2 lengths = gpu::lengths_of(p.plan, p.lengths, at.batch);
  if (lane == 0) {
    const gpu::TileRow* row = rows + std::int64_t{at.batch} * p.plan.max_tile_rows;
    while (row->tiles.q_tile != at.tile_row) ++row;
    work_tile = {};
    work_tile.batch = at.batch;
    if constexpr (Params::kIsTransposed) {
      work_tile.key_begin = at.tile_row * p.plan.block_q;
    } else {
      work_tile.q_begin = at.tile_row * p.plan.block_q;
    }
    work_tile.q_len = lengths.x;
    work_tile.kv_len = lengths.y;
    work_tile.first_document = row->tiles.first_document;
    work_tile.last_document = row->tiles.last_document;
    gpu::store_band(band_address, row->band);
  }
  __syncwarp();
  const gpu::TilePlace place{at.tile_row * p.plan.block_q, at.column_tile * gpu::kTileKeys,
                             Params::kIsTransposed ? lengths.x : lengths.y};
  gpu::write_mask<1>(ptx::shared_address(slot), p, ptx::shared_address(&work_tile), band_address,
                     TileStep{PlanSegmentKind::closed_form, 0, at.column_tile, 0}, place, lane);
  __syncwarp();
  for (int i = lane; i < 512; i += 32) words[512 * blockIdx.x + i] = slot[i];
}

// The value of a cell by the closed form on the host.
bool host_cell(const ClosedFormElement& element, std::int32_t row, std::int32_t column) {
  const auto intervals = element.intervals(row);
  return std::any_of(intervals.begin(), intervals.end(), [&](const ClosedFormRange& each) {
    return each.begin <= column && column < each.end;
  });
}

template <bool kIsTransposed>
std::string fragment_error(const gpu::PlanArrays& arrays, const gpu::RunTimeLengths& lengths,
                           const DeviceArray<gpu::TileRow>& rows,
                           const std::vector<ClosedFormElement>& elements) {
  std::vector<MaskedTile> tiles;
  for (std::int32_t b = 0; b < static_cast<std::int32_t>(elements.size()); ++b) {
    const ClosedFormElement& element = elements[static_cast<std::size_t>(b)];
    for (std::int32_t i = 0; i * arrays.block_q < element.num_rows; ++i) {
      for (std::int32_t j = 0; j * 128 < element.num_columns; ++j) tiles.push_back({b, i, j});
    }
  }
  if (tiles.empty()) return {};
  const DeviceArray<MaskedTile> on_device(tiles);
  const DeviceArray<std::uint32_t> words(512 * tiles.size());
  make_fragments<<<static_cast<unsigned>(tiles.size()), 32>>>(
      MaskParams<kIsTransposed>{arrays, lengths}, rows.data(), on_device.data(), words.data());
  gpu_test::require(cudaGetLastError(), "make_fragments");
  const std::vector<std::uint32_t> got = words.to_host();
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const MaskedTile& at = tiles[t];
    const ClosedFormElement& element = elements[static_cast<std::size_t>(at.batch)];
    for (int i = 0; i < 512; ++i) {
      for (int bit = 0; bit < 32; ++bit) {
        const gpu::FragmentCell cell = gpu::mask_cell(i / 2 % 128, i % 2, bit);
        const std::int32_t in_tile = i / 256 * 64 + cell.row;
        const std::int32_t row = at.tile_row * arrays.block_q + (in_tile >> arrays.pack_shift);
        const std::int32_t column = at.column_tile * 128 + cell.col;
        const bool exists = row < element.num_rows;
        // Queries past the length may see anything; keys past it see nothing.
        if (!exists && !kIsTransposed) continue;
        const bool is_set = (got[512 * t + static_cast<std::size_t>(i)] >> bit & 1) != 0;
        if (is_set == (exists && host_cell(element, row, column))) continue;
        return "batch " + std::to_string(at.batch) + " row " + std::to_string(row) + " column " +
               std::to_string(column);
      }
    }
  }
  return {};
}

// Each tile row must be there once, with the tiles of the host. Longer rows must come first, up to
// the classes of the sort.
std::string row_error(const gpu::PlanArrays& arrays, const std::vector<gpu::TileRow>& rows,
                      const std::vector<ClosedFormElement>& elements, BlockShape tile) {
  for (std::size_t b = 0; b < elements.size(); ++b) {
    const ClosedFormElement& element = elements[b];
    std::vector<bool> is_there(static_cast<std::size_t>(arrays.max_tile_rows));
    std::int32_t previous = kClosedFormMaxLength;
    for (std::int32_t i = 0; i < arrays.max_tile_rows; ++i) {
      const gpu::TileRowTiles& got = rows[b * is_there.size() + static_cast<std::size_t>(i)].tiles;
      const std::string where = "batch " + std::to_string(b) + " tile row " +
                                std::to_string(got.q_tile) + " at " + std::to_string(i);
      if (got.q_tile < 0 || got.q_tile >= arrays.max_tile_rows) return where;
      if (is_there[static_cast<std::size_t>(got.q_tile)]) return where + ": a second time";
      is_there[static_cast<std::size_t>(got.q_tile)] = true;
      if (got.num_tiles > previous) return where + ": longer than the one before";
      previous = got.num_tiles;
      if (got.q_tile * tile.block_q >= element.num_rows) {
        if (got.num_tiles != gpu::kNoRow) return where + ": is there";
        continue;
      }
      const ClosedFormWalk walk = walk_of(element, tile, got.q_tile);
      if (got.num_tiles != walk.num_tiles()) return where + ": another number of tiles";
      for (const int index : {0, 1}) {
        const ClosedFormWalk::TileRun &a = got.tile_runs[index], &c = walk.tile_run(index);
        if (std::tie(a.first, a.end) != std::tie(c.first, c.end) || a.num_full() != c.num_full()) {
          return where + ": another run";
        }
      }
    }
  }
  return {};
}

TEST(TileRowsOnDevice, AreThoseOfTheHostInEitherDirection) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 rng(seed);
    const bool is_backward = seed % 2 == 1;
    const ParametricMask form =
        seed % 10 == 0 ? testing::random_form(rng, 20, 700) : testing::random_form(rng, 600, 700);
    const BlockMask mask = testing::block_mask_of(form);
    AttentionShape shape = testing::shape_for(mask, pick(rng, 1, 3), 4, 2);
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
    PlanOptions options;
    options.backend = Backend::sm90;
    options.form = PlanForm::parametric;
    options.direction = is_backward ? Direction::backward : Direction::forward;
    const auto plan = make_plan(mask, shape, {}, options);
    ASSERT_TRUE(plan) << plan.error().message;
    const auto device_plan = gpu::upload(*plan, nullptr);
    ASSERT_TRUE(device_plan) << device_plan.error().message;
    const gpu::PlanArrays& arrays = (*device_plan)->arrays;

    std::vector<std::int32_t> q_lens, kv_lens, borders;
    for (std::int32_t b = 0; b < shape.batch; ++b) {
      q_lens.push_back(static_cast<std::int32_t>(pick(rng, 0, form.q_len)));
      kv_lens.push_back(static_cast<std::int32_t>(pick(rng, 0, form.kv_len)));
    }
    for (int i = 0; i < pick(rng, 2, 9); ++i) {
      borders.push_back(static_cast<std::int32_t>(pick(rng, 0, form.kv_len)));
    }
    std::sort(borders.begin(), borders.end());
    const DeviceArray<std::int32_t> d_q_lens(q_lens), d_kv_lens(kv_lens), d_borders(borders);
    CallLengths call;
    gpu::RunTimeLengths lengths{};
    if (pick(rng, 0, 3) > 0) {
      call.q_lens = q_lens.data();
      call.kv_lens = kv_lens.data();
      lengths.q_lens = d_q_lens.data();
      lengths.kv_lens = d_kv_lens.data();
    }
    if (pick(rng, 0, 2) == 0) {
      call.cu_seqlens = borders.data();
      call.num_borders = lengths.num_borders = static_cast<std::int32_t>(borders.size());
      lengths.cu_seqlens = d_borders.data();
    }
    const DeviceArray<gpu::TileRow> rows(
        static_cast<std::size_t>(shape.batch * arrays.max_tile_rows));
    const DeviceArray<std::int32_t> counter(1);
    gpu_test::require(gpu::order_tile_rows(arrays, lengths, static_cast<int>(shape.batch),
                                           rows.data(), counter.data(), nullptr),
                      "order_tile_rows");
    const std::vector<ClosedFormElement> elements =
        closed_form_elements(*plan, testing::closed_forms_of(*plan), call);
    ASSERT_EQ(row_error(arrays, rows.to_host(), elements, plan->mask_tile()), "") << seed;
    ASSERT_EQ(is_backward ? fragment_error<true>(arrays, lengths, rows, elements)
                          : fragment_error<false>(arrays, lengths, rows, elements),
              "")
        << seed;
  }
}

}  // namespace
}  // namespace fdma
