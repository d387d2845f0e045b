#include "run/attention_run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "fdma/formats/convert.hpp"

namespace fdma::maskc {
namespace {

using Clock = std::chrono::steady_clock;

// Moves a progress bar by a counter that other threads advance, while this thread waits for them.
class CountedProgress {
 public:
  CountedProgress(const char* what, std::int64_t total, bool quiet) {
    if (quiet || isatty(STDERR_FILENO) == 0) return;
    thread_ = std::thread([this, what, total] {
      Progress progress(what, "work tiles", false);
      std::unique_lock lock(mutex_);
      while (!ended_.wait_for(lock, std::chrono::milliseconds(100), [&] { return has_ended_; })) {
        progress.update(num_done.load(std::memory_order_relaxed), total);
      }
    });
  }
  CountedProgress(const CountedProgress&) = delete;
  CountedProgress& operator=(const CountedProgress&) = delete;
  ~CountedProgress() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

  std::atomic<std::int64_t> num_done{0};

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

// `call` gets the options with a counter of finished work tiles. Options are those of either
// direction.
template <class Options, class Call>
Outcome<double> timed_on_host(const char* what, std::int64_t num_work_tiles, const Options& options,
                              bool quiet, const Call& call) {
  CountedProgress progress(what, num_work_tiles, quiet);
  Options counted = options;
  counted.num_work_tiles_done = &progress.num_done;
  const Clock::time_point start = Clock::now();
  FDMA_TRY_VOID(call(counted));
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class Options, class Call>
Outcome<double> timed_on_gpu(StreamTimer& timer, const Options& options, const Call& call) {
  FDMA_TRY_VOID(timer.start());
  FDMA_TRY_VOID(call(options));
  FDMA_TRY_VOID(timer.stop());
  FDMA_TRY(const double seconds, timer.seconds());
  return seconds;
}

std::int64_t bytes_of(const OwnedTensor& tensor) {
  return tensor.spec().num_elements() * size_bytes(tensor.spec().dtype);
}

template <class View>
Outcome<DeviceMemory> copied(const OwnedTensor& tensor, View& view) {
  FDMA_TRY(DeviceMemory bytes, DeviceMemory::allocate(bytes_of(tensor)));
  FDMA_TRY_VOID(copy_to_device(bytes.data(), tensor.data(), bytes.size_bytes()));
  view.data = bytes.data();
  view.device = Device::cuda;
  return bytes;
}

}  // namespace

Outcome<DeviceMemory> copied_to_gpu(const OwnedTensor& tensor, TensorView& view) {
  return copied(tensor, view);
}
Outcome<DeviceMemory> copied_to_gpu(const OwnedTensor& tensor, MutableTensorView& view) {
  return copied(tensor, view);
}

Outcome<PlacedTensors> PlacedTensors::make(Backend backend, const AttentionProblem& problem,
                                           AttentionMemory& memory) {
  PlacedTensors placed;
  placed.memory_ = &memory;
  placed.on_host_ = placed.in_place_ = memory.tensors(problem);
  if (backend.traits().device == Device::cpu) return placed;
  // The copies are in the order of fetch_results. out and lse are copied too, so that values that a
  // kernel does not write (rows past the length of an element) come back unchanged.
  AttentionTensors& tensors = placed.in_place_;
  const auto copy = [&](OwnedTensor& tensor, auto& view) -> Status {
    FDMA_TRY(DeviceMemory bytes, copied_to_gpu(tensor, view));
    placed.copies_.push_back(std::move(bytes));
    return Nothing{};
  };
  FDMA_TRY_VOID(copy(memory.out, tensors.out));
  FDMA_TRY_VOID(copy(memory.lse, tensors.lse));
  FDMA_TRY_VOID(copy(memory.q, tensors.q));
  FDMA_TRY_VOID(copy(memory.k, tensors.kv.k));
  FDMA_TRY_VOID(copy(memory.v, tensors.kv.v));
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (!problem.score.has(kScoreTensors[i])) continue;
    FDMA_TRY_VOID(copy(memory.score[i], tensors.*kScoreTensors[i].view));
  }
  return placed;
}

Status PlacedTensors::fetch_results() const {
  if (is_on_host()) return Nothing{};
  FDMA_TRY_VOID(copy_to_host(memory_->out.data(), copies_[0].data(), copies_[0].size_bytes()));
  FDMA_TRY_VOID(copy_to_host(memory_->lse.data(), copies_[1].data(), copies_[1].size_bytes()));
  return Nothing{};
}

Outcome<TimedPlan> TimedPlan::make(std::shared_ptr<const AttentionPlan> plan,
                                   const PrepareOptions& options) {
  TimedPlan timed;
  timed.num_work_tiles_ = plan->num_work_tiles();
  FDMA_TRY(timed.plan_, prepare(std::move(plan), nullptr, options));
  if (timed.plan_->backend().traits().device == Device::cpu) return timed;
  FDMA_TRY(DeviceMemory workspace, DeviceMemory::allocate(timed.plan_->workspace_bytes()));
  FDMA_TRY(StreamTimer timer, StreamTimer::make());
  timed.workspace_.emplace(std::move(workspace));
  timed.timer_.emplace(std::move(timer));
  return timed;
}

Outcome<double> TimedPlan::run(const AttentionTensors& tensors, const AttentionOptions& options,
                               bool quiet) {
  const Launch launch{workspace_ ? workspace_->data() : nullptr};
  const auto call = [&](const AttentionOptions& each) {
    return plan_->forward(tensors, launch, each);
  };
  return timer_ ? timed_on_gpu(*timer_, options, call)
                : timed_on_host("attention", num_work_tiles_, options, quiet, call);
}

Outcome<double> TimedPlan::run(const BackwardTensors& tensors, const BackwardOptions& options,
                               bool quiet) {
  const Launch launch{workspace_ ? workspace_->data() : nullptr};
  const auto call = [&](const BackwardOptions& each) {
    return plan_->backward(tensors, launch, each);
  };
  return timer_ ? timed_on_gpu(*timer_, options, call)
                : timed_on_host("gradients", num_work_tiles_, options, quiet, call);
}

std::int64_t allowed_pairs(const BlockMask& mask, const AttentionShape& shape) {
  std::vector<std::int64_t> uses(static_cast<std::size_t>(mask.num_groups()));
  for (const std::int32_t group : mask.group_of) ++uses[static_cast<std::size_t>(group)];
  std::int64_t pairs = 0;
  for (std::int64_t g = 0; g < mask.num_groups(); ++g) {
    pairs += uses[static_cast<std::size_t>(g)] *
             count_tiles(segment_of_group(mask, g, mask.block)).allowed_pairs;
  }
  return pairs * (shape.batch / mask.shape.num_batches) * (shape.heads_q / mask.shape.num_heads);
}

std::int64_t live_tiles(const PlanCounts& counts) {
  return counts.full_tiles + counts.formula_tiles + counts.bitmap_tiles + counts.row_tiles +
         counts.column_tiles + counts.gather_chunks;
}

std::string rate_text(double gflops) {
  return gflops < 1e4 ? fmt::format("{:.1f} GFLOP/s", gflops)
                      : fmt::format("{:.1f} TFLOP/s", gflops / 1e3);
}

std::string backend_text(Backend backend) {
  if (backend == Backend::cpu) return fmt::format("cpu ({})", cpu_target());
  const Result<std::string> name = current_device_name();
  return fmt::format("{} ({})", to_string(backend), name ? *name : "no GPU");
}

Json device_json(Backend backend) {
  if (backend.traits().device == Device::cpu) return nullptr;
  const Result<std::string> name = current_device_name();
  return name ? Json(*name) : Json(nullptr);
}

std::string shape_text(const AttentionProblem& problem) {
  const AttentionShape& shape = problem.shape;
  std::string text = fmt::format("q {}, k {}, v {}", to_string(q_spec(problem)),
                                 to_string(k_spec(problem)), to_string(v_spec(problem)));
  text += score_text(problem.score);
  if (shape.out_dtype != shape.q_dtype) text += fmt::format(", out {}", to_string(shape.out_dtype));
  return text;
}

std::string plan_text(const AttentionPlan& plan) {
  const PlanCounts& counts = plan.counts;
  std::string text = fmt::format("{} full", count_text(counts.full_tiles));
  if (counts.formula_tiles > 0) {
    text += fmt::format(", {} closed-form", count_text(counts.formula_tiles));
  }
  if (counts.bitmap_tiles > 0) text += fmt::format(", {} bitmap", count_text(counts.bitmap_tiles));
  if (counts.row_tiles > 0) text += fmt::format(", {} row", count_text(counts.row_tiles));
  if (counts.column_tiles > 0) text += fmt::format(", {} column", count_text(counts.column_tiles));
  text += fmt::format(" tiles of {} x {}", plan.tile.block_q, plan.tile.block_kv);
  if (counts.gather_chunks > 0) {
    text += fmt::format(", {} of gathered keys", plural(counts.gather_chunks, "chunk"));
  }
  return text + fmt::format(" in {}", plural(plan.num_work_tiles(), "work tile"));
}

Json shape_json(const AttentionProblem& problem) {
  const AttentionShape& shape = problem.shape;
  return {{"batch", shape.batch},
          {"heads_q", shape.heads_q},
          {"heads_kv", shape.heads_kv},
          {"q_lens", shape.q_lens},
          {"kv_lens", shape.kv_lens},
          {"head_dim", shape.head_dim},
          {"head_dim_v", shape.head_dim_v},
          {"q_dtype", to_string(shape.q_dtype)},
          {"k_dtype", to_string(shape.k_dtype)},
          {"v_dtype", to_string(shape.v_dtype)},
          {"out_dtype", to_string(shape.out_dtype)},
          {"key_bias", problem.score.parts.key_bias},
          {"layout", to_string(problem.layout)}};
}

Json plan_json(const AttentionPlan& plan) {
  const PlanCounts& counts = plan.counts;
  return {{"backend", to_string(plan.backend)},
          {"tile", {{"q", plan.tile.block_q}, {"kv", plan.tile.block_kv}}},
          {"form", to_string(plan.planned_form())},
          {"num_items", plan.num_work_tiles()},
          {"full_tiles", counts.full_tiles},
          {"formula_tiles", counts.formula_tiles},
          {"bitmap_tiles", counts.bitmap_tiles},
          {"row_tiles", counts.row_tiles},
          {"column_tiles", counts.column_tiles},
          {"column_entries", counts.column_entries},
          {"gather_chunks", counts.gather_chunks},
          {"gather_entries", counts.gather_entries},
          {"moved_keys", counts.moved_keys},
          {"empty_items", counts.empty_items},
          {"size_bytes", plan.size_bytes()}};
}

}  // namespace fdma::maskc
