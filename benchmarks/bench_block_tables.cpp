// What random selections of blocks cost the host, on one core: `tiles(@t, 64, 64)` with a table for
// each head, one block in ten kept, in tiles of 128 x 128.
//
// Cases: 16 heads over 40,704 tokens (video attention) and one head over 131,072. For each: compiling
// (bind + lower), tile counts, mask_hash, validation at level structure, and making plans for both
// backends and directions from the compiled mask. Time is the CPU time of all threads of the
// process; elapsed time is reported too. Counters: result_bytes, of the mask or plan.
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fdma/formats/hash.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/plan.hpp"
#include "google_benchmark.hpp"
#include "program.hpp"

namespace {

constexpr std::int64_t kSide = 64;

/// The tables of all heads. The mask is compiled when it is first needed.
struct Case {
  Case(std::int64_t tokens_of_head, std::int32_t num_heads)
      : tokens(tokens_of_head), heads(num_heads), num_blocks(tokens / kSide) {
    fdma::suite::Random random(7);
    kept.resize(static_cast<std::size_t>(heads * num_blocks * num_blocks));
    for (std::uint8_t& each : kept) each = random.below(10) == 0;
    shape.num_heads = heads;
    shape.q_lens = shape.kv_lens = {tokens};
  }

  fdma::BlockMask compile() const {
    const std::int64_t extents[] = {1, heads, num_blocks, num_blocks};
    const fdma::Tables tables{
        {"t", fdma::make_contiguous_view(kept.data(), fdma::DType::boolean, 4, extents)}};
    fdma::LowerOptions options;
    options.num_threads = 1;
    return fdma::value_or_exit(fdma::compile(expr, tables, shape, options), "tiles");
  }
  const fdma::BlockMask& compiled() {
    if (mask == nullptr) mask = std::make_unique<fdma::BlockMask>(compile());
    return *mask;
  }

  std::int64_t tokens;
  std::int32_t heads;
  std::int64_t num_blocks;
  std::vector<std::uint8_t> kept;
  fdma::MaskExpr expr = fdma::value_or_exit(fdma::parse_mask("tiles(@t, 64, 64)"), "tiles");
  fdma::MaskShape shape;
  std::unique_ptr<fdma::BlockMask> mask;
};

fdma::AttentionPlan plan_of(Case& c, fdma::Backend backend, fdma::Direction direction) {
  fdma::AttentionShape shape;
  shape.heads_q = shape.heads_kv = c.heads;
  shape.q_lens = shape.kv_lens = {c.tokens};
  if (backend == fdma::Backend::sm90) {
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = fdma::DType::bfloat16;
  }
  fdma::PlanOptions options;
  options.backend = backend;
  options.direction = direction;
  options.num_threads = 1;
  return fdma::value_or_exit(fdma::make_plan(c.compiled(), shape, {}, options), "make_plan");
}

template <class Work>
void add(const std::string& name, const std::shared_ptr<Case>& c, Work work) {
  fdma::add_benchmark(
      "blocks/" + std::to_string(c->heads) + "x" + std::to_string(c->tokens) + "/" + name,
      [c, work](benchmark::State& state) { work(state, *c); });
}

template <class Function>
auto of_mask(Function function) {
  return [function](benchmark::State& state, Case& c) {
    const fdma::BlockMask& mask = c.compiled();
    for (auto _ : state) benchmark::DoNotOptimize(function(mask));
  };
}

void add_case(std::int64_t tokens, std::int32_t heads) {
  const auto c = std::make_shared<Case>(tokens, heads);
  add("compile", c, [](benchmark::State& state, Case& each) {
    for (auto _ : state) benchmark::DoNotOptimize(each.compile());
    state.counters["result_bytes"] = static_cast<double>(each.compiled().size_bytes());
  });
  add("counts", c, of_mask([](const fdma::BlockMask& mask) {
        std::int64_t partial = 0;
        for (const auto& group : std::get<std::vector<fdma::SegmentMask>>(mask.groups)) {
          partial += fdma::count_tiles(group).partial;
        }
        return partial;
      }));
  add("mask_hash", c, of_mask([](const fdma::BlockMask& mask) { return fdma::mask_hash(mask); }));
  add("validate", c, of_mask([](const fdma::BlockMask& mask) {
        return fdma::validate(mask, fdma::ValidationLevel::structure).has_value();
      }));
  for (const fdma::Backend backend : {fdma::Backend::cpu, fdma::Backend::sm90}) {
    for (const auto direction : {fdma::Direction::forward, fdma::Direction::backward}) {
      const std::string name = "plan_" + std::string(backend.traits().name) + "_" +
                               std::string(fdma::to_string(direction));
      add(name, c, [backend, direction](benchmark::State& state, Case& each) {
        each.compiled();
        for (auto _ : state) benchmark::DoNotOptimize(plan_of(each, backend, direction));
        state.counters["result_bytes"] =
            static_cast<double>(plan_of(each, backend, direction).size_bytes());
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!fdma::begin_benchmarks(argc, argv)) return 1;
  add_case(40704, 16);
  add_case(131072, 1);
  return fdma::run_benchmarks();
}
