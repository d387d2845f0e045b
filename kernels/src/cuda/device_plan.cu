// Uploads plans to device memory: all arrays in one allocation, each at a multiple of 256 bytes.
// There is one function for each form of plans.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/cuda_error.hpp"
#include "cuda/device_plan.hpp"
#include "cuda/partials.hpp"
#include "plan/accumulation_order.hpp"
#include "plan/entry_accumulators.hpp"

namespace fdma::gpu {
namespace {

constexpr std::int64_t kArrayAlignment = 256;

// Assigns each array its offset, then collects their bytes in one host buffer and copies it.
class Packing {
 public:
  /// `on_device` will be the address of the array, which must live until upload.
  template <class T, class OnDevice>
  void add(const std::vector<T>& array, const OnDevice*& on_device) {
    const std::int64_t at = size_;
    parts_.push_back(
        {array.data(), array.size() * sizeof(T), at, [&on_device, at](const char* base) {
           on_device = reinterpret_cast<const OnDevice*>(base + at);
         }});
    size_ += ceil_div(static_cast<std::int64_t>(array.size() * sizeof(T)), kArrayAlignment) *
             kArrayAlignment;
  }

  Result<void> upload(Stream stream, DevicePlan& impl) const {
    std::vector<char> buffer(static_cast<std::size_t>(size_));
    for (const PackedArray& part : parts_) {
      if (part.bytes > 0) std::memcpy(buffer.data() + part.at, part.data, part.bytes);
    }
    impl.size_bytes = size_;
    FDMA_TRY_VOID(check_cuda(cudaMalloc(&impl.memory, buffer.size()), "cudaMalloc"));
    // The source is pageable memory, so it may be freed when the call returns.
    FDMA_TRY_VOID(check_cuda(
        cudaMemcpyAsync(impl.memory, buffer.data(), buffer.size(), cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync"));
    for (const PackedArray& part : parts_) part.set(static_cast<const char*>(impl.memory));
    return {};
  }

 private:
  struct PackedArray {
    const void* data;
    std::size_t bytes;
    std::int64_t at;
    std::function<void(const char* base)> set;
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
std::vector<WorkTile> work_tiles_on_device(const SegmentPlan& plan) {
  std::vector<WorkTile> work_tiles = plan.work_tiles;
  for (WorkTile& work_tile : work_tiles) {
    const KvPermutation* order = plan.kv_permutation(work_tile);
    work_tile.num_entries =
        order == nullptr ? kTensorKeys : static_cast<std::int32_t>(order->num_keys);
  }
  return work_tiles;
}

std::int64_t max_tile_rows(const PlanHeader& header) {
  const AttentionShape& shape = header.shape;
  const std::int64_t max_rows = header.is_backward() ? shape.max_kv_len() : shape.max_q_len();
  return ceil_div(max_rows, header.mask_tile().block_q);
}

// Sets the counts that kernels read of plans of every form.
Result<void> set_counts(const PlanHeader& header, std::int64_t num_work_tiles, PlanArrays& arrays) {
  const AttentionShape& shape = header.shape;
  if (num_work_tiles > std::numeric_limits<std::int32_t>::max()) {
    return Error{ErrorCode::unsupported, "upload: " + std::to_string(num_work_tiles) +
                                             " work tiles, but at most 2^31 - 1 can be run"};
  }
  arrays.num_work_tiles = static_cast<std::int32_t>(num_work_tiles);
  arrays.block_q = header.mask_tile().block_q;
  arrays.pack_shift = std::countr_zero(static_cast<std::uint32_t>(header.heads_per_tile));
  arrays.num_sets = head_sets_of_group(shape.group_size(), header.heads_per_tile);
  arrays.max_tile_rows = static_cast<std::int32_t>(max_tile_rows(header));
  arrays.heads_kv = shape.heads_kv;
  arrays.heads_in_l2 = 1;
  arrays.num_splits = 1;
  arrays.is_backward = header.is_backward();
  return {};
}

// For a backward plan of segments: whether the work tiles are grouped by KV head, in ascending
// order of these, and each KV head has tile groups for all multiprocessors.
bool is_by_row(const PlanHeader& header, const SegmentPlan& plan, int num_multiprocessors) {
  const auto group_size = static_cast<std::size_t>(header.shape.group_size());
  std::int64_t row = -1, num_units = num_multiprocessors;
  for (std::size_t i = 0; i < plan.work_tiles.size(); i += group_size) {
    const WorkTile& work_tile = plan.work_tiles[i];
    const std::int64_t row_of_work_tile = std::int64_t{work_tile.batch} * header.shape.heads_kv +
                                          work_tile.head / header.shape.group_size();
    if (row_of_work_tile != row) {
      if (row_of_work_tile < row || num_units < num_multiprocessors) return false;
      row = row_of_work_tile;
      num_units = 0;
    }
    ++num_units;
  }
  return row > 0 && num_units >= num_multiprocessors;
}

Result<void> check_gather(const AttentionShape& shape) {
  const std::int32_t most_dim = std::max(shape.head_dim, shape.head_dim_v);
  if (most_dim <= kMaxGatherDim) return {};
  return Error{ErrorCode::unsupported,
               "upload: head_dim of a plan with kv index lists: expected at most " +
                   std::to_string(kMaxGatherDim) + ", got " + std::to_string(most_dim) +
                   "; make the plan with columns = scan"};
}

Result<void> upload_form(const PlanHeader& header, const SegmentPlan& plan, Stream stream,
                         const PrepareOptions& options, DevicePlan& impl) {
  impl.is_gathering = std::any_of(
      plan.segments.begin(), plan.segments.end(),
      [](const PlanSegment& segment) { return segment.kind == PlanSegmentKind::gather; });
  if (impl.is_gathering) FDMA_TRY_VOID(check_gather(header.shape));
  PlanArrays& arrays = impl.arrays;
  FDMA_TRY_VOID(set_counts(header, static_cast<std::int64_t>(plan.work_tiles.size()), arrays));
  arrays.num_split_rows = static_cast<std::int32_t>(plan.split_rows.size());
  for (const SplitRow& row : plan.split_rows) {
    impl.num_partials += row.num_partials;
    impl.max_partials = std::max(impl.max_partials, row.num_partials);
  }
  for (const KvPermutation& order : plan.kv_permutations) {
    impl.orders.max_keys =
        std::max(impl.orders.max_keys, static_cast<std::int32_t>(order.num_keys));
  }
  impl.is_by_row = header.is_backward() && is_by_row(header, plan, impl.num_multiprocessors);

  const std::vector<int2> lengths = lengths_of(header.shape);
  std::vector<std::int32_t> keys;
  std::vector<uchar2> rows;
  split_entries(plan.kv_index_entries, keys, rows);
  const std::vector<KvIndexListOnDevice> device_lists = lists_on_device(plan.kv_index_lists);
  const std::vector<WorkTile> device_work_tiles = work_tiles_on_device(plan);
  Packing packing;
  packing.add(device_work_tiles, arrays.work_tiles);
  packing.add(plan.segments, arrays.segments);
  packing.add(plan.patterns, arrays.patterns.patterns);
  packing.add(plan.pattern_entries, arrays.patterns.entries);
  packing.add(plan.bitmaps, arrays.bitmaps);
  packing.add(plan.row_offsets, arrays.row_offsets);
  packing.add(plan.row_intervals, arrays.row_intervals);
  packing.add(plan.column_tables, arrays.column_tables);
  packing.add(plan.column_offsets, arrays.column_offsets);
  packing.add(plan.column_intervals, arrays.column_intervals);
  packing.add(plan.split_rows, arrays.split_rows);
  packing.add(lengths, arrays.lengths);
  if (!plan.kv_index_lists.empty()) {
    packing.add(device_lists, impl.gather.lists);
    packing.add(keys, impl.gather.keys);
    packing.add(rows, impl.gather.rows);
  }
  packing.add(plan.kv_permutations, impl.orders.orders);
  packing.add(plan.permuted_keys, impl.orders.keys);
  packing.add(plan.permutation_of, impl.orders.permutation_of);
  AccumulationOrder order;
  if (options.deterministic && header.is_backward()) {
    FDMA_TRY(order, accumulation_order(header, plan, impl.num_multiprocessors));
    arrays.walks_down = order.walks_down;
    packing.add(order.tile_groups, arrays.tile_groups);
    packing.add(order.first_positions, arrays.first_positions);
    packing.add(order.positions, arrays.positions);
  }
  return packing.upload(stream, impl);
}

Result<void> upload_form(const PlanHeader& header, const ClosedFormPlan& plan, Stream stream,
                         const PrepareOptions& /*options*/, DevicePlan& impl) {
  const std::int64_t num_sets =
      head_sets_of_group(header.shape.group_size(), header.heads_per_tile) *
      std::int64_t{header.shape.heads_kv};
  const std::int64_t num_work_tiles =
      header.shape.batch * max_tile_rows(header) * num_sets * plan.num_splits;
  PlanArrays& arrays = impl.arrays;
  FDMA_TRY_VOID(set_counts(header, num_work_tiles, arrays));
  if (plan.num_splits > 1) impl.num_partials = num_work_tiles;
  impl.max_partials = plan.num_splits;
  arrays.num_closed_forms = static_cast<std::int32_t>(plan.closed_forms.size());
  arrays.heads_in_l2 = plan.heads_in_l2;
  arrays.num_splits = plan.num_splits;

  const std::vector<int2> lengths = lengths_of(header.shape);
  Packing packing;
  packing.add(plan.closed_forms, arrays.closed_forms);
  packing.add(plan.borders, arrays.borders);
  packing.add(lengths, arrays.lengths);
  return packing.upload(stream, impl);
}

Result<void> upload_form(const PlanHeader& header, const KvWorklist& plan, Stream stream,
                         const PrepareOptions& options, DevicePlan& impl) {
  // Kernels read the number of work tiles from the worklist, which a device may have made.
  PlanArrays& arrays = impl.arrays;
  FDMA_TRY_VOID(set_counts(header, 0, arrays));
  AccumulationOrder order;
  KvWorklist ordered;
  if (options.deterministic) {
    FDMA_TRY(order, accumulation_order(header, plan, impl.num_multiprocessors));
    ordered = with_accum_of_pairs(plan);
    take_in_order(order.tile_groups, ordered.work_tiles);
    order.tile_groups.clear();
  }
  const KvWorklist& lists = options.deterministic ? ordered : plan;
  impl.has_worklist = true;
  impl.worklist.max_work_tiles = static_cast<std::int32_t>(lists.work_tiles.size());
  impl.worklist.num_accum_rows = static_cast<std::int64_t>(lists.accum_keys.size());

  const std::vector<int2> lengths = lengths_of(header.shape);
  const std::vector<std::int32_t> num_work_tiles{impl.worklist.max_work_tiles};
  Packing packing;
  packing.add(lengths, arrays.lengths);
  packing.add(lists.keys, impl.worklist.keys);
  packing.add(lists.work_tiles, impl.worklist.work_tiles);
  packing.add(lists.accum_keys, impl.worklist.accum_keys);
  packing.add(num_work_tiles, impl.worklist.num_work_tiles);
  if (options.deterministic) {
    arrays.walks_down = order.walks_down;
    packing.add(order.tile_groups, arrays.tile_groups);
    packing.add(order.first_positions, arrays.first_positions);
    packing.add(order.positions, arrays.positions);
  }
  return packing.upload(stream, impl);
}

Result<std::unique_ptr<DevicePlan>> upload_plan(const AttentionPlan& plan, Stream stream,
                                                const PrepareOptions& options) {
  auto impl = std::make_unique<DevicePlan>();
  impl->shape = plan.shape;
  impl->score = plan.score;
  impl->direction = plan.direction;
  impl->tile = plan.tile;
  impl->is_ordered = options.deterministic;
  FDMA_TRY_VOID(check_cuda(cudaGetDevice(&impl->device), "cudaGetDevice"));
  FDMA_TRY_VOID(check_cuda(cudaDeviceGetAttribute(&impl->num_multiprocessors,
                                                  cudaDevAttrMultiProcessorCount, impl->device),
                           "cudaDeviceGetAttribute"));
  FDMA_TRY_VOID(
      std::visit([&](const auto& form) { return upload_form(plan, form, stream, options, *impl); },
                 plan.form));
  return Result<std::unique_ptr<DevicePlan>>(std::move(impl));
}

}  // namespace

DevicePlan::~DevicePlan() {
  if (memory != nullptr) cudaFree(memory);
}

Result<std::unique_ptr<DevicePlan>> upload(const AttentionPlan& plan, Stream stream,
                                           const PrepareOptions& options) {
  try {
    return upload_plan(plan, stream, options);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 "upload: no host memory for " + std::to_string(plan.size_bytes()) + " bytes"};
  }
}

}  // namespace fdma::gpu
