// Uploads plans to device memory: all arrays in one allocation, each at a multiple of 256 bytes.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "cuda/cuda_error.hpp"
#include "cuda/device_plan.hpp"
#include "cuda/partials.hpp"
#include "plan/accumulation_order.hpp"
#include "plan/entry_accumulators.hpp"

namespace fdma::sm90 {
namespace {

constexpr std::int64_t kArrayAlignment = 256;

// Assigns each array its offset, then collects its bytes in one host buffer.
class Packing {
 public:
  template <class T>
  std::int64_t add(const std::vector<T>& array) {
    const std::int64_t at = size_;
    parts_.push_back({array.data(), array.size() * sizeof(T), at});
    size_ += ceil_div(static_cast<std::int64_t>(array.size() * sizeof(T)), kArrayAlignment) *
             kArrayAlignment;
    return at;
  }
  std::int64_t size() const { return size_; }

  std::vector<char> bytes() const {
    std::vector<char> buffer(static_cast<std::size_t>(size_));
    for (const PackedArray& part : parts_) {
      if (part.bytes > 0) std::memcpy(buffer.data() + part.at, part.data, part.bytes);
    }
    return buffer;
  }

 private:
  struct PackedArray {
    const void* data;
    std::size_t bytes;
    std::int64_t at;
  };
  std::vector<PackedArray> parts_;
  std::int64_t size_ = 0;
};

std::vector<int2> lengths_of(const AttentionShape& shape) {
  std::vector<int2> lengths;
  lengths.reserve(static_cast<std::size_t>(shape.batch));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    lengths.push_back(
        make_int2(static_cast<int>(shape.q_len(b)), static_cast<int>(shape.kv_len(b))));
  }
  return lengths;
}

// Splits the entries of kv index lists into keys and, as bytes, rows.
void split_entries(const std::vector<KvIndexEntry>& entries, std::vector<std::int32_t>& keys,
                   std::vector<uchar2>& rows) {
  keys.resize(entries.size());
  rows.resize(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    keys[i] = entries[i].key;
    rows[i] = make_uchar2(static_cast<unsigned char>(entries[i].row_begin),
                          static_cast<unsigned char>(entries[i].row_end));
  }
}

// Lists of a plan share no index tiles.
std::vector<KvIndexListOnDevice> lists_on_device(const std::vector<KvIndexList>& lists) {
  std::vector<KvIndexListOnDevice> on_device;
  on_device.reserve(lists.size());
  for (const KvIndexList& list : lists) {
    on_device.push_back(
        {KvIndexListOnDevice::place_of(list.first_entry, 0, 0), list.num_entries, list.num_full});
  }
  return on_device;
}

void take_in_order(const std::vector<std::int32_t>& order, std::vector<KvWorkTile>& work_tiles) {
  std::vector<KvWorkTile> ordered;
  ordered.reserve(work_tiles.size());
  for (const std::int32_t i : order) ordered.push_back(work_tiles[static_cast<std::size_t>(i)]);
  work_tiles = std::move(ordered);
}

// Work tiles as kernels read them, with num_entries saying which keys their tiles count.
std::vector<WorkTile> work_tiles_on_device(const AttentionPlan& plan) {
  std::vector<WorkTile> work_tiles = plan.work_tiles;
  for (WorkTile& work_tile : work_tiles) {
    const KvPermutation* order = plan.kv_permutation(work_tile);
    work_tile.num_entries =
        order == nullptr ? kTensorKeys : static_cast<std::int32_t>(order->num_keys);
  }
  return work_tiles;
}

// Sets the counts that kernels read in addition to the arrays.
Result<void> set_counts(const AttentionPlan& plan, DevicePlan& impl) {
  PlanArrays& arrays = impl.arrays;
  const AttentionShape& shape = plan.shape;
  const std::int64_t num_sets =
      head_sets_of_group(shape.group_size(), plan.heads_per_tile) * shape.heads_kv;
  const std::int64_t max_rows = plan.is_backward() ? shape.max_kv_len() : shape.max_q_len();
  const std::int64_t max_tile_rows = ceil_div(max_rows, plan.mask_tile().block_q);
  std::int64_t num_work_tiles = static_cast<std::int64_t>(plan.work_tiles.size());
  for (const SplitRow& row : plan.split_rows) impl.num_partials += row.num_partials;
  if (plan.is_closed_form()) {
    num_work_tiles = shape.batch * max_tile_rows * num_sets * plan.num_splits;
    if (plan.num_splits > 1) impl.num_partials = num_work_tiles;
  }
  if (num_work_tiles > std::numeric_limits<std::int32_t>::max()) {
    return Error{ErrorCode::unsupported, "upload: " + std::to_string(num_work_tiles) +
                                             " work tiles, but at most 2^31 - 1 can be run"};
  }
  arrays.num_work_tiles = static_cast<std::int32_t>(num_work_tiles);
  arrays.num_split_rows = static_cast<std::int32_t>(plan.split_rows.size());
  arrays.block_q = plan.mask_tile().block_q;
  arrays.pack_shift = std::countr_zero(static_cast<std::uint32_t>(plan.heads_per_tile));
  arrays.num_sets = static_cast<std::int32_t>(num_sets / std::max(shape.heads_kv, 1));
  arrays.num_closed_forms = static_cast<std::int32_t>(plan.closed_forms.size());
  arrays.max_tile_rows = static_cast<std::int32_t>(max_tile_rows);
  arrays.heads_kv = shape.heads_kv;
  arrays.heads_in_l2 = plan.heads_in_l2;
  arrays.num_splits = plan.num_splits;
  arrays.is_backward = plan.is_backward();
  for (const SplitRow& row : plan.split_rows) {
    impl.max_partials = std::max(impl.max_partials, row.num_partials);
  }
  if (plan.is_closed_form()) impl.max_partials = plan.num_splits;
  return {};
}

// For a backward plan with work tiles: whether the work tiles are grouped by KV head, in ascending
// order of these, and each KV head has tile groups for all multiprocessors.
bool is_by_row(const AttentionPlan& plan, int num_multiprocessors) {
  const auto group_size = static_cast<std::size_t>(plan.shape.group_size());
  std::int64_t row = -1, num_units = num_multiprocessors;
  for (std::size_t i = 0; i < plan.work_tiles.size(); i += group_size) {
    const WorkTile& work_tile = plan.work_tiles[i];
    const std::int64_t row_of_work_tile = std::int64_t{work_tile.batch} * plan.shape.heads_kv +
                                          work_tile.head / plan.shape.group_size();
    if (row_of_work_tile != row) {
      if (row_of_work_tile < row || num_units < num_multiprocessors) return false;
      row = row_of_work_tile;
      num_units = 0;
    }
    ++num_units;
  }
  return row > 0 && num_units >= num_multiprocessors;
}

Result<std::unique_ptr<DevicePlan>> upload_arrays(const AttentionPlan& plan, Stream stream,
                                                  const PrepareOptions& options) {
  auto impl = std::make_unique<DevicePlan>();
  impl->shape = plan.shape;
  impl->score = plan.score;
  impl->direction = plan.direction;
  impl->tile = plan.tile;
  impl->is_gathering = std::any_of(
      plan.segments.begin(), plan.segments.end(),
      [](const PlanSegment& segment) { return segment.kind == PlanSegmentKind::gather; });
  FDMA_TRY_VOID(check_cuda(cudaGetDevice(&impl->device), "cudaGetDevice"));
  FDMA_TRY_VOID(check_cuda(cudaDeviceGetAttribute(&impl->num_multiprocessors,
                                                  cudaDevAttrMultiProcessorCount, impl->device),
                           "cudaDeviceGetAttribute"));

  const std::int32_t most_dim = std::max(plan.shape.head_dim, plan.shape.head_dim_v);
  if (impl->is_gathering && most_dim > kMaxGatherDim) {
    return Error{ErrorCode::unsupported,
                 "upload: head_dim of a plan with kv index lists: expected at most " +
                     std::to_string(kMaxGatherDim) + ", got " + std::to_string(most_dim) +
                     "; make the plan with columns = scan"};
  }
  const std::vector<int2> lengths = lengths_of(plan.shape);
  std::vector<std::int32_t> keys;
  std::vector<uchar2> rows;
  split_entries(plan.kv_index_entries, keys, rows);
  const std::vector<KvIndexListOnDevice> device_lists = lists_on_device(plan.kv_index_lists);
  const std::vector<WorkTile> device_work_tiles = work_tiles_on_device(plan);
  Packing packing;
  const std::int64_t work_tiles = packing.add(device_work_tiles);
  const std::int64_t segments = packing.add(plan.segments);
  const std::int64_t bitmaps = packing.add(plan.bitmaps);
  const std::int64_t row_offsets = packing.add(plan.row_offsets);
  const std::int64_t row_intervals = packing.add(plan.row_intervals);
  const std::int64_t column_tables = packing.add(plan.column_tables);
  const std::int64_t column_offsets = packing.add(plan.column_offsets);
  const std::int64_t column_intervals = packing.add(plan.column_intervals);
  const std::int64_t split_rows = packing.add(plan.split_rows);
  const std::int64_t closed_forms = packing.add(plan.closed_forms);
  const std::int64_t borders = packing.add(plan.borders);
  const std::int64_t lengths_at = packing.add(lengths);
  const std::int64_t kv_index_lists = packing.add(device_lists);
  const std::int64_t gather_keys = packing.add(keys);
  const std::int64_t gather_rows = packing.add(rows);
  const std::int64_t kv_permutations = packing.add(plan.kv_permutations);
  const std::int64_t permuted_keys = packing.add(plan.permuted_keys);
  const std::int64_t permutation_of = packing.add(plan.permutation_of);
  const bool is_ordered = options.deterministic && plan.is_backward() && !plan.is_closed_form();
  AccumulationOrder order;
  KvWorklist ordered_lists;
  if (is_ordered) {
    FDMA_TRY(order, accumulation_order(plan, impl->num_multiprocessors));
    if (plan.has_worklist()) {
      ordered_lists = with_accum_of_pairs(plan.kv_worklist);
      take_in_order(order.tile_groups, ordered_lists.work_tiles);
      order.tile_groups.clear();
    }
  }
  const KvWorklist& lists = is_ordered ? ordered_lists : plan.kv_worklist;
  const std::vector<std::int32_t> num_worklist_tiles{
      static_cast<std::int32_t>(lists.work_tiles.size())};
  const std::int64_t listed_keys = packing.add(lists.keys);
  const std::int64_t list_items = packing.add(lists.work_tiles);
  const std::int64_t accum_keys = packing.add(lists.accum_keys);
  const std::int64_t list_sizes = packing.add(num_worklist_tiles);
  const std::int64_t tile_groups = packing.add(order.tile_groups);
  const std::int64_t first_positions = packing.add(order.first_positions);
  const std::int64_t positions = packing.add(order.positions);
  impl->size_bytes = packing.size();
  FDMA_TRY_VOID(set_counts(plan, *impl));

  const std::vector<char> bytes = packing.bytes();
  FDMA_TRY_VOID(check_cuda(cudaMalloc(&impl->memory, bytes.size()), "cudaMalloc"));
  // The source is pageable memory, so it may be freed when the call returns.
  FDMA_TRY_VOID(check_cuda(
      cudaMemcpyAsync(impl->memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream),
      "cudaMemcpyAsync"));
  const char* base = static_cast<const char*>(impl->memory);
  PlanArrays& arrays = impl->arrays;
  arrays.work_tiles = reinterpret_cast<const WorkTile*>(base + work_tiles);
  arrays.segments = reinterpret_cast<const PlanSegment*>(base + segments);
  arrays.bitmaps = reinterpret_cast<const uint4*>(base + bitmaps);
  arrays.row_offsets = reinterpret_cast<const std::int64_t*>(base + row_offsets);
  arrays.row_intervals = reinterpret_cast<const Interval*>(base + row_intervals);
  arrays.column_tables = reinterpret_cast<const std::int64_t*>(base + column_tables);
  arrays.column_offsets = reinterpret_cast<const std::int64_t*>(base + column_offsets);
  arrays.column_intervals = reinterpret_cast<const Interval*>(base + column_intervals);
  arrays.split_rows = reinterpret_cast<const SplitRow*>(base + split_rows);
  arrays.closed_forms = reinterpret_cast<const ClosedFormMask*>(base + closed_forms);
  arrays.borders = reinterpret_cast<const std::int32_t*>(base + borders);
  arrays.lengths = reinterpret_cast<const int2*>(base + lengths_at);
  if (!plan.kv_index_lists.empty()) {
    impl->gather = {reinterpret_cast<const KvIndexListOnDevice*>(base + kv_index_lists),
                    reinterpret_cast<const std::int32_t*>(base + gather_keys),
                    reinterpret_cast<const uchar2*>(base + gather_rows)};
  }
  impl->orders = {reinterpret_cast<const KvPermutation*>(base + kv_permutations),
                  reinterpret_cast<const std::int32_t*>(base + permuted_keys),
                  reinterpret_cast<const std::int32_t*>(base + permutation_of), 0};
  for (const KvPermutation& order : plan.kv_permutations) {
    impl->orders.max_keys =
        std::max(impl->orders.max_keys, static_cast<std::int32_t>(order.num_keys));
  }
  impl->has_worklist = plan.has_worklist();
  impl->worklist = {reinterpret_cast<const WorklistEntry*>(base + listed_keys),
                    reinterpret_cast<const KvWorkTile*>(base + list_items),
                    reinterpret_cast<const AccumKey*>(base + accum_keys),
                    reinterpret_cast<const std::int32_t*>(base + list_sizes),
                    num_worklist_tiles.front(),
                    static_cast<std::int64_t>(lists.accum_keys.size())};
  impl->is_ordered = options.deterministic;
  impl->is_by_row = plan.is_backward() && is_by_row(plan, impl->num_multiprocessors);
  if (is_ordered) {
    arrays.walks_down = order.walks_down;
    arrays.tile_groups = reinterpret_cast<const std::int32_t*>(base + tile_groups);
    arrays.first_positions = reinterpret_cast<const std::int32_t*>(base + first_positions);
    arrays.positions = reinterpret_cast<const std::int32_t*>(base + positions);
  }
  return Result<std::unique_ptr<DevicePlan>>(std::move(impl));
}

}  // namespace

DevicePlan::~DevicePlan() {
  if (memory != nullptr) cudaFree(memory);
}

Result<std::unique_ptr<DevicePlan>> upload(const AttentionPlan& plan, Stream stream,
                                           const PrepareOptions& options) {
  try {
    return upload_arrays(plan, stream, options);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 "upload: no host memory for " + std::to_string(plan.size_bytes()) + " bytes"};
  }
}

}  // namespace fdma::sm90
