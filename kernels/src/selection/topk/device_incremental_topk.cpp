// DeviceIncrementalTopk: owns the device memory and cuts calls into steps. The host follows M
// (which keys wait, where groups end), the device follows the scores.
#include "selection/topk/device_incremental_topk.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "cuda/gpu_library.hpp"
#include "cuda/gpu_memory.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/select/one_interval.hpp"
#include "selection/topk/topk_rows.hpp"

namespace fdma {

struct DeviceIncrementalTopk::Impl {
  const GpuLibrary* gpu = nullptr;
  Options options;
  int device = 0;
  DeviceMemory memory;
  zoh::IncrementalState state{};
  // The host's copy of what IncrementalTopk knows of M.
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t first_waiting = 0;  ///< keys from here on have not been shown
  std::vector<Interval> waiting;   ///< their queries
  std::int32_t group_end = kOpenEnd;
  OneIntervalRule rule;
};

namespace {

constexpr std::int64_t kMostRows = kOpenEnd - 1;

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

Result<void> check_options(const DeviceIncrementalTopk::Options& options) {
  if (options.w < 1) return invalid("w: expected at least 1, got " + std::to_string(options.w));
  if (options.num_batches < 0 || options.num_heads_kv < 0 || options.capacity < 0 ||
      options.capacity > kMostRows) {
    return invalid("capacity: expected 0 to " + std::to_string(kMostRows) + " keys of rows, got " +
                   std::to_string(options.num_batches) + " x " +
                   std::to_string(options.num_heads_kv) + " x " + std::to_string(options.capacity));
  }
  return {};
}

Result<void> allocate(DeviceIncrementalTopk::Impl& impl, Stream stream) {
  const DeviceIncrementalTopk::Options& options = impl.options;
  const std::int64_t rows = options.num_batches * options.num_heads_kv;
  // More than capacity keys are never kept.
  const std::int64_t w = std::min(options.w, std::max<std::int64_t>(options.capacity, 1));
  std::int64_t size = 0;
  const auto place = [&](std::int64_t count, std::int64_t bytes) {
    const std::int64_t at = size;
    size += ceil_div(count * bytes, 256) * 256;
    return at;
  };
  const std::int64_t status_at = place(1, sizeof(std::uint32_t));
  const std::int64_t rows_at = place(rows, sizeof(zoh::RowState));
  const std::int64_t cleared = size;
  const std::int64_t ranks_at = place(rows * 2 * w, sizeof(std::uint64_t));
  const std::int64_t kept_at = place(rows * options.capacity, sizeof(Interval));
  const std::int64_t queries_at = place(options.capacity, sizeof(Interval));
  const std::int64_t waiting_at =
      place(options.keys_may_wait ? rows * options.capacity : 0, sizeof(float));
  FDMA_TRY(impl.device, current_device());
  FDMA_TRY(impl.memory, DeviceMemory::allocate(size));
  char* const base = static_cast<char*>(impl.memory.data());
  FDMA_TRY_VOID(fill_with_zeros(base, cleared, stream));
  zoh::IncrementalState& state = impl.state;
  state.status = reinterpret_cast<std::uint32_t*>(base + status_at);
  state.rows = reinterpret_cast<zoh::RowState*>(base + rows_at);
  state.ranks = reinterpret_cast<std::uint64_t*>(base + ranks_at);
  state.kept = reinterpret_cast<int2*>(base + kept_at);
  state.queries = reinterpret_cast<int2*>(base + queries_at);
  state.waiting = options.keys_may_wait ? reinterpret_cast<float*>(base + waiting_at) : nullptr;
  state.capacity = options.capacity;
  state.w = w;
  state.num_rows = static_cast<std::int32_t>(rows);
  state.num_heads = static_cast<std::int32_t>(options.num_heads_kv);
  return impl.gpu->incremental_topk.prepare();
}

Result<void> check_scores(const DeviceIncrementalTopk::Impl& impl, const TensorView& scores) {
  const std::int64_t count = scores.rank == 3 ? scores.extents[2] : 0;
  FDMA_TRY_VOID(
      zoh::check_topk_scores(scores, impl.options.num_batches, impl.options.num_heads_kv, count));
  if (count > impl.options.capacity - impl.kv_len) {
    return invalid("scores: " + std::to_string(count) + " keys after " +
                   std::to_string(impl.kv_len) + ", but the capacity is " +
                   std::to_string(impl.options.capacity));
  }
  return {};
}

std::string interval_text(std::size_t i, Interval queries) {
  std::string text = "among[";
  text += std::to_string(i);
  text += "]: got [";
  text += std::to_string(queries.begin);
  text += ", ";
  text += std::to_string(queries.end);
  text += ")";
  return text;
}

zoh::Step step_of(const TensorView& scores) {
  zoh::Step step;
  step.num_new = static_cast<std::int32_t>(scores.extents[2]);
  step.scores = static_cast<const float*>(scores.data);
  step.batch_stride = scores.strides[0];
  step.head_stride = scores.strides[1];
  step.key_stride = scores.strides[2];
  return step;
}

}  // namespace

DeviceIncrementalTopk::DeviceIncrementalTopk(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceIncrementalTopk::DeviceIncrementalTopk(DeviceIncrementalTopk&&) noexcept = default;
DeviceIncrementalTopk& DeviceIncrementalTopk::operator=(DeviceIncrementalTopk&&) noexcept = default;
DeviceIncrementalTopk::~DeviceIncrementalTopk() = default;

std::int64_t DeviceIncrementalTopk::num_batches() const { return impl_->options.num_batches; }
std::int64_t DeviceIncrementalTopk::num_heads_kv() const { return impl_->options.num_heads_kv; }
std::int64_t DeviceIncrementalTopk::capacity() const { return impl_->options.capacity; }
std::int64_t DeviceIncrementalTopk::w() const { return impl_->options.w; }
std::int64_t DeviceIncrementalTopk::q_len() const { return impl_->q_len; }
std::int64_t DeviceIncrementalTopk::kv_len() const { return impl_->kv_len; }
int DeviceIncrementalTopk::device() const { return impl_->device; }
std::int64_t DeviceIncrementalTopk::size_bytes() const { return impl_->memory.size_bytes(); }
const Interval* DeviceIncrementalTopk::kept() const {
  return reinterpret_cast<const Interval*>(impl_->state.kept);
}
const std::uint32_t* DeviceIncrementalTopk::status() const { return impl_->state.status; }

Result<DeviceIncrementalTopk> DeviceIncrementalTopk::make(const Options& options, Stream stream) {
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  FDMA_TRY_VOID(check_options(options));
  auto impl = std::make_unique<Impl>();
  FDMA_TRY(impl->gpu, gpu_library());
  impl->options = options;
  FDMA_TRY_VOID(allocate(*impl, stream));
  return DeviceIncrementalTopk(std::move(impl));
}

Result<void> DeviceIncrementalTopk::append_causal(const TensorView& scores, Stream stream) {
  Impl& impl = *impl_;
  FDMA_TRY_VOID(check_scores(impl, scores));
  zoh::Step step = step_of(scores);
  const std::int64_t count = scores.extents[2];
  if (count > kMostRows - impl.q_len) {
    return invalid("scores: expected at most " + std::to_string(kMostRows - impl.q_len) +
                   " after " + std::to_string(impl.q_len) + " queries, got " +
                   std::to_string(count));
  }
  if (impl.first_waiting < impl.kv_len || impl.group_end != kOpenEnd) {
    // Waiting keys, or a group whose end is known, meet the new keys: this takes the general way.
    try {
      std::vector<Interval> among(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < among.size(); ++i) {
        among[i] = {static_cast<std::int32_t>(impl.q_len + static_cast<std::int64_t>(i)), kOpenEnd};
      }
      return append(scores, among, count, stream);
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::out_of_memory, "append_causal: out of memory"};
    }
  }
  if (count == 0) return {};
  OneIntervalRule rule = impl.rule;
  const auto first = static_cast<std::int32_t>(impl.q_len);
  const auto last = static_cast<std::int32_t>(impl.q_len + count - 1);
  FDMA_TRY_VOID(rule.accept(impl.kv_len, {first, kOpenEnd}));
  FDMA_TRY_VOID(rule.accept(impl.kv_len + count - 1, {last, kOpenEnd}));
  step.is_causal = true;
  step.num_queries = step.num_new;
  FDMA_TRY_VOID(impl.gpu->incremental_topk.launch_step(impl.state, step, stream));
  impl.rule = rule;
  impl.q_len += count;
  impl.kv_len += count;
  impl.first_waiting = impl.kv_len;
  return {};
}

Result<void> DeviceIncrementalTopk::append(const TensorView& scores,
                                           std::span<const Interval> among,
                                           std::int64_t num_queries, Stream stream) {
  Impl& impl = *impl_;
  FDMA_TRY_VOID(check_scores(impl, scores));
  const std::int64_t count = scores.extents[2];
  if (static_cast<std::int64_t>(among.size()) != count) {
    return Error{ErrorCode::shape_mismatch, "among: expected " + std::to_string(count) +
                                                " intervals, one per key, got " +
                                                std::to_string(among.size())};
  }
  if (num_queries < 0 || num_queries > kMostRows - impl.q_len) {
    return invalid("num_queries: expected 0 to " + std::to_string(kMostRows - impl.q_len) +
                   " after " + std::to_string(impl.q_len) + " queries, got " +
                   std::to_string(num_queries));
  }
  const std::int64_t end = impl.q_len + num_queries;
  OneIntervalRule rule = impl.rule;
  for (std::size_t i = 0; i < among.size(); ++i) {
    const Interval queries = among[i];
    if (queries.begin > queries.end || queries.begin < 0) {
      return invalid(interval_text(i, queries) + ", expected 0 <= begin <= end");
    }
    if (queries.begin == queries.end) continue;
    if (queries.begin < impl.q_len) {
      return invalid(interval_text(i, queries) + ", but queries up to " +
                     std::to_string(impl.q_len) + " have been decided");
    }
    if (queries.begin >= end && !impl.options.keys_may_wait) {
      return invalid(interval_text(i, queries) + ", past the last query of this call, " +
                     std::to_string(end - 1) + ", but keys_may_wait is not set");
    }
    FDMA_TRY_VOID(rule.accept(impl.kv_len + static_cast<std::int64_t>(i), queries));
  }
  try {
    impl.waiting.reserve(impl.waiting.size() + among.size());
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "append: out of memory"};
  }
  if (count > 0) {
    FDMA_TRY_VOID(impl.gpu->memory.copy_to_device(
        reinterpret_cast<Interval*>(impl.state.queries) + impl.kv_len, among.data(),
        count * static_cast<std::int64_t>(sizeof(Interval)), stream));
  }
  impl.rule = rule;
  impl.waiting.insert(impl.waiting.end(), among.begin(), among.end());
  // One step for each group of rows that has keys to show.
  zoh::Step step = step_of(scores);
  step.is_last = false;
  const auto flush = [&](std::int64_t next) -> Result<void> {
    FDMA_TRY_VOID(impl.gpu->incremental_topk.launch_step(impl.state, step, stream));
    step.end = zoh::kNoEnd;
    step.is_first = false;
    step.first_shown = static_cast<std::int32_t>(next);
    step.num_shown = 0;
    return {};
  };
  step.first_shown = static_cast<std::int32_t>(impl.first_waiting);
  std::size_t shown = 0;
  for (; shown < impl.waiting.size(); ++shown) {
    const Interval& queries = impl.waiting[shown];
    if (queries.begin < queries.end) {
      if (queries.begin >= end) break;
      if (queries.begin >= impl.group_end) {
        if (step.num_shown > 0 || step.end != zoh::kNoEnd) {
          FDMA_TRY_VOID(flush(impl.first_waiting + static_cast<std::int64_t>(shown)));
        }
        step.end = impl.group_end;
      }
      impl.group_end = queries.end;
    }
    ++step.num_shown;
  }
  impl.first_waiting += static_cast<std::int64_t>(shown);
  impl.waiting.erase(impl.waiting.begin(),
                     impl.waiting.begin() + static_cast<std::ptrdiff_t>(shown));
  const bool group_ends = impl.group_end <= end;
  if (group_ends) {
    FDMA_TRY_VOID(flush(impl.first_waiting));
    step.end = impl.group_end;
    impl.group_end = kOpenEnd;
  }
  step.is_last = true;
  step.num_queries = static_cast<std::int32_t>(num_queries);
  FDMA_TRY_VOID(impl.gpu->incremental_topk.launch_step(impl.state, step, stream));
  impl.q_len = end;
  impl.kv_len += count;
  return {};
}

Result<void> DeviceIncrementalTopk::end_group(Stream stream) {
  Impl& impl = *impl_;
  zoh::Step step;
  step.end = zoh::kEndNow;
  step.first_cleared = static_cast<std::int32_t>(impl.first_waiting);
  step.num_cleared = static_cast<std::int32_t>(impl.kv_len - impl.first_waiting);
  FDMA_TRY_VOID(impl.gpu->incremental_topk.launch_step(impl.state, step, stream));
  impl.first_waiting = impl.kv_len;
  impl.waiting.clear();
  impl.group_end = kOpenEnd;
  impl.rule.end_group(impl.q_len);
  return {};
}

Result<void> DeviceIncrementalTopk::refresh(Stream stream) {
  Impl& impl = *impl_;
  if (impl.state.num_rows == 0) return {};
  zoh::RowState row;
  FDMA_TRY_VOID(copy_to_host(&row, impl.state.rows, sizeof row, stream));
  if (row.kv_len == impl.kv_len && row.q_len == impl.q_len) return {};
  // The state after replays of append_causal: every key has been shown, the last one by the last
  // query.
  impl.q_len = row.q_len;
  impl.kv_len = row.kv_len;
  impl.first_waiting = row.kv_len;
  return impl.rule.accept(row.kv_len - 1, {row.q_len - 1, kOpenEnd});
}

Result<void> DeviceIncrementalTopk::live_keys(std::int32_t* keys, std::int64_t row_size,
                                              std::int32_t* counts, Stream stream) const {
  if (counts == nullptr || row_size < 0 || (keys == nullptr && row_size > 0)) {
    return invalid(
        "live_keys: expected keys and counts in device memory, and a row_size of 0 or "
        "more, got " +
        std::to_string(row_size));
  }
  return impl_->gpu->incremental_topk.launch_live_keys(impl_->state, keys, row_size, counts,
                                                       stream);
}

Result<std::vector<ColumnIntervals>> DeviceIncrementalTopk::intervals(Stream stream) {
  FDMA_TRY_VOID(refresh(stream));
  const Impl& impl = *impl_;
  const auto rows = static_cast<std::size_t>(impl.state.num_rows);
  try {
    std::vector<Interval> all(rows * static_cast<std::size_t>(impl.kv_len));
    if (!all.empty()) {
      constexpr std::int64_t kIntervalBytes = sizeof(Interval);
      FDMA_TRY_VOID(impl.gpu->memory.copy_rows_to_host(
          all.data(), impl.state.kept, impl.options.capacity * kIntervalBytes,
          impl.kv_len * kIntervalBytes, impl.state.num_rows, stream));
      FDMA_TRY_VOID(wait_for(stream));
    }
    for (Interval& interval : all) {
      if (interval.end == kOpenEnd) interval.end = static_cast<std::int32_t>(impl.q_len);
    }
    return zoh::columns_of_rows(all, impl.kv_len, std::vector<std::int64_t>(rows, impl.q_len),
                                std::vector<std::int64_t>(rows, impl.kv_len));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "intervals: no host memory for them"};
  }
}

}  // namespace fdma
