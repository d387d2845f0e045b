// attention_backward on the CPU, in three steps: values common to all keys of a row, then groups of
// key tiles in the order of the plan, then dq in its own type. With DeltaSource::corrected the
// groups are walked twice; the first walk sums dS along rows, for the correction of D.
//
// A group is the work tiles of a KV head's query heads at one key tile. One thread runs it, so
// gradients of k, v and bias belong to that thread alone. Gradients of q are sums over key tiles,
// which are added in accumulation order (DqTickets).
#include "fdma/kernels/attention_backward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "cpu/backward.hpp"
#include "cpu/call.hpp"
#include "fdma/base/parallel.hpp"

namespace fdma {
namespace cpu {

DqTickets::DqTickets(const PlanHeader& plan) : plan_(plan), max_tickets_(0) {
  std::size_t num_places = 0;
  std::int64_t most_tiles = 0;
  for (std::int64_t b = 0; b < plan.shape.batch; ++b) {
    first_of_batch_.push_back(num_places);
    const std::int64_t tiles = ceil_div(plan.shape.q_len(b), plan.tile.block_q);
    most_tiles = std::max(most_tiles, tiles);
    num_places += static_cast<std::size_t>(tiles * plan.shape.heads_q);
  }
  max_tickets_ = static_cast<std::size_t>(most_tiles * plan.shape.group_size());
  turns_ = Turns(num_places);
}

std::size_t DqTickets::place(const WorkTile& work_tile) const {
  const std::int64_t tiles = ceil_div(plan_.shape.q_len(work_tile.batch), plan_.tile.block_q);
  return first_of_batch_[static_cast<std::size_t>(work_tile.batch)] +
         static_cast<std::size_t>(tiles * work_tile.head);
}

void DqTickets::draw(const WorkTile& work_tile, TileCursor tiles,
                     std::vector<std::int32_t>& tickets) {
  const std::size_t first = place(work_tile);
  for (std::int32_t tile = 0; tiles.next(tile);) {
    tickets.push_back(turns_.draw(first + static_cast<std::size_t>(tile)));
  }
}

void DqTickets::wait(const WorkTile& work_tile, std::int32_t q_tile, std::int32_t ticket) {
  turns_.wait(place(work_tile) + static_cast<std::size_t>(q_tile), ticket);
}

void DqTickets::finish(const WorkTile& work_tile, std::int32_t q_tile, std::int32_t ticket) {
  turns_.finish(place(work_tile) + static_cast<std::size_t>(q_tile), ticket);
}

BackwardRun::BackwardRun(const CheckedBackwardCall& call, const PlanHeader& of_plan,
                         const SegmentPlan* of_segments)
    : CheckedBackwardCall(call),
      plan(&of_plan),
      segments(of_segments),
      dq_sum(call.dq),
      dropout_bits(fdma::dropout_bits(call.dropout)) {
  const AttentionShape& shape = plan->shape;
  const std::size_t num_rows = row_index(shape.batch, 0, 0);
  exponent.resize(num_rows);
  shift.resize(num_rows);
  if (corrects_delta) missing.resize(num_rows);
  if (dq.dtype == DType::float32) return;
  const std::int64_t head_dim = shape.head_dim;
  dq_memory.resize(num_rows * static_cast<std::size_t>(head_dim));
  dq_sum.data = dq_memory.data();
  dq_sum.dtype = DType::float32;
  dq_sum.batch_stride = shape.heads_q * shape.max_q_len() * head_dim;
  dq_sum.row_stride = head_dim;
  dq_sum.head_stride = shape.max_q_len() * head_dim;
}

void BackwardArrays::add_to(FloatBlock& block, const AttentionShape& shape, BlockShape tile,
                            bool has_terms) {
  const std::int64_t keys = panel_rows(tile.block_kv);
  const std::int64_t head_dim = shape.head_dim, head_dim_v = shape.head_dim_v;
  block.add(k, keys * head_dim);
  block.add(v, keys * head_dim_v);
  block.add(k_columns, keys * panel_rows(head_dim));
  block.add(dk, keys * head_dim);
  block.add(dv, keys * head_dim_v);
  block.add(bias, keys);
  block.add(dbias, keys);
  block.add(terms, has_terms ? kChunkColumns * kMaxPanelRows : 0);
  block.add(q, kChunkColumns * head_dim);
  block.add(dout, kChunkColumns * head_dim_v);
  block.add(weights, kChunkColumns * kMaxPanelRows);
  block.add(dscores, kChunkColumns * kMaxPanelRows);
  block.add(ds_rows, kChunkColumns * keys);
  block.add(dq, kChunkColumns * panel_rows(head_dim));
  block.add(row, kMaxHeadDim);
}

BackwardWorkspace::BackwardWorkspace(BackwardRun& run, const BackwardPass& pass)
    : chunk(run.plan->mask_tile(), run.dropout.rate > 0),
      q_rows(kChunkColumns),
      dout_rows(kChunkColumns),
      ds_row_at(kChunkColumns) {
  add_to(memory, run.plan->shape, run.plan->tile, run.has_newer_parts());
  memory.allocate();
  if (run.wants_pair_gradients() && !pass.adds_up_rows) sums.emplace(run);
  tickets.reserve(pass.dq_tickets.max_tickets());
}

std::int64_t BackwardWorkspace::bytes(const AttentionShape& shape, BlockShape tile) {
  FloatBlock block;
  BackwardArrays arrays;
  arrays.add_to(block, shape, tile, true);
  return block.bytes() + Chunk::bytes({tile.block_kv, tile.block_q}) +
         3 * kChunkColumns * std::int64_t{sizeof(float*)} +
         4 * shape.group_size() * ceil_div(shape.max_q_len(), tile.block_q);
}

namespace {

// Hands out groups in the order of the plan, together with their tickets.
class GroupQueue {
 public:
  GroupQueue(BackwardRun& run, DqTickets& dq_tickets, const std::vector<WorkTile>& work_tiles)
      : run_(run), dq_tickets_(dq_tickets), work_tiles_(work_tiles) {}

  /// Returns the first work tile of the next group, or null. Its tickets replace those in the
  /// workspace.
  const WorkTile* take(BackwardWorkspace& workspace) {
    const std::lock_guard lock(mutex_);
    if (next_ == work_tiles_.size()) return nullptr;
    const WorkTile* first = work_tiles_.data() + next_;
    next_ += static_cast<std::size_t>(run_.plan->shape.group_size());
    workspace.tickets.clear();
    workspace.sum_tickets.clear();
    for (std::int32_t i = 0; i < run_.plan->shape.group_size(); ++i) {
      dq_tickets_.draw(first[i], run_.tiles_of(first[i]), workspace.tickets);
      if (workspace.sums) {
        workspace.sum_tickets.push_back(run_.score_gradients->draw(run_, first[i]));
      }
    }
    return first;
  }

 private:
  BackwardRun& run_;
  DqTickets& dq_tickets_;
  const std::vector<WorkTile>& work_tiles_;
  std::mutex mutex_;
  std::size_t next_ = 0;
};

// Calls visit(batch, head, begin, end) for blocks of all queries, on all threads.
template <class Visit>
void for_each_query_block(const BackwardRun& run, const Visit& visit) {
  const AttentionShape& shape = run.plan->shape;
  constexpr std::int64_t kRows = 256;
  const std::int64_t blocks = ceil_div(shape.max_q_len(), kRows);
  fdma::parallel_for(std::int64_t{0}, shape.batch * shape.heads_q * blocks, [&](std::int64_t i) {
    const std::int64_t begin = i % blocks * kRows, head = i / blocks % shape.heads_q;
    const std::int64_t batch = i / blocks / shape.heads_q;
    const std::int64_t end = std::min(begin + kRows, run.q_len(batch));
    if (begin < end) visit(batch, head, begin, end);
  });
}

bool is_cancelled(const BackwardOptions& options) {
  return options.is_cancelled != nullptr && *options.is_cancelled;
}

void run_pass(BackwardRun& run, const std::vector<WorkTile>& work_tiles, bool adds_up_rows,
              const BackwardOptions& options) {
  BackwardPass pass(*run.plan, adds_up_rows);
  GroupQueue queue(run, pass.dq_tickets, work_tiles);
  const std::int32_t group_size = run.plan->shape.group_size();
  // A group that is taken is also finished, because others wait for it.
  const auto work = [&] {
    BackwardWorkspace workspace(run, pass);
    while (!is_cancelled(options)) {
      const WorkTile* group = queue.take(workspace);
      if (group == nullptr) return;
      run_group(run, pass, group, workspace);
      if (options.num_work_tiles_done != nullptr && !adds_up_rows)
        *options.num_work_tiles_done += group_size;
    }
  };
  const std::size_t num_groups = work_tiles.size() / static_cast<std::size_t>(group_size);
  const auto num_workers =
      std::min(static_cast<std::size_t>(max_concurrency()), std::max<std::size_t>(num_groups, 1));
  fdma::parallel_for(
      std::size_t{0}, num_workers, [&](std::size_t) { work(); }, tbb::simple_partitioner());
}

void run_all(BackwardRun& run, const std::vector<WorkTile>& work_tiles,
             const BackwardOptions& options) {
  if (run.has_newer_parts()) run.score_gradients.emplace(run);
  for_each_query_block(run, [&](auto batch, auto head, auto begin, auto end) {
    if (!is_cancelled(options)) prepare_rows(run, batch, head, begin, end);
  });
  if (run.corrects_delta) {
    run_pass(run, work_tiles, true, options);
    for_each_query_block(run, [&](auto batch, auto head, auto begin, auto end) {
      add_missing(run, batch, head, begin, end);
    });
  }
  run_pass(run, work_tiles, false, options);
  if (run.score_gradients && !is_cancelled(options)) run.score_gradients->store(run);
  if (run.dq.dtype == DType::float32 || is_cancelled(options)) return;
  for_each_query_block(run, [&](auto batch, auto head, auto begin, auto end) {
    store_dq(run, batch, head, begin, end);
  });
}

Result<void> run_form(const PlanHeader& header, const SegmentPlan& plan,
                      const BackwardTensors& tensors, const BackwardOptions& options) {
  FDMA_TRY(const CheckedBackwardCall checked,
           checked_backward_call(header.direction, header.shape, header.score, tensors, options,
                                 Device::cpu));
  FDMA_TRY_VOID(restrict_targets());
  BackwardRun run(checked, header, &plan);
  in_arena(options.num_threads, [&] { run_all(run, plan.work_tiles, options); });
  return {};
}

Result<void> run_form(const PlanHeader& header, const ClosedFormPlan& plan,
                      const BackwardTensors& tensors, const BackwardOptions& options) {
  FDMA_TRY(const CheckedBackwardCall checked,
           checked_backward_call(header.direction, header.shape, header.score, tensors, options,
                                 Device::cpu, true));
  FDMA_TRY_VOID(check_closed_form_call(header.shape, checked));
  FDMA_TRY_VOID(restrict_targets());
  BackwardRun run(checked, header, nullptr);
  run.elements = closed_form_elements(header, plan, checked);
  const std::vector<WorkTile> work_tiles = closed_form_work_tiles(header, plan, run.elements);
  in_arena(options.num_threads, [&] { run_all(run, work_tiles, options); });
  return {};
}

Result<void> run_form(const PlanHeader& /*header*/, const KvWorklist& /*lists*/,
                      const BackwardTensors& /*tensors*/, const BackwardOptions& /*options*/) {
  return Error{ErrorCode::unsupported, "plan: kv worklists are for backward calls on a GPU"};
}

}  // namespace
}  // namespace cpu

Result<void> attention_backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                                const BackwardOptions& options) {
  if (plan.backend != Backend::cpu) {
    return Error{ErrorCode::unsupported,
                 fmt::format("backend: expected a plan for cpu, got one for {}: prepare it",
                             to_string(plan.backend))};
  }
  try {
    FDMA_TRY_VOID(std::visit(
        [&](const auto& form) { return cpu::run_form(plan, form, tensors, options); }, plan.form));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("attention_backward: no memory for the sums of dq, or no {} bytes of "
                             "workspace for each thread",
                             plan.worker_bytes)};
  }
  if (cpu::is_cancelled(options)) {
    return Error{ErrorCode::io, "attention_backward: interrupted"};
  }
  return {};
}

}  // namespace fdma
