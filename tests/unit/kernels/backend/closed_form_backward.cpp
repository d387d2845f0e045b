#include "backend/closed_form_backward.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "backend/closed_form_cases.hpp"

namespace fdma::testing {
namespace {

// int32 values in the memory of a fixture.
class FixtureInts {
 public:
  FixtureInts(BackendFixture& fixture, const std::vector<std::int32_t>& values)
      : fixture_(fixture), size_(static_cast<std::int64_t>(values.size())) {
    memory_ = fixture.allocate(4 * size_ + 4);
    fixture.write(memory_, reinterpret_cast<const unsigned char*>(values.data()), 4 * size_);
  }
  ~FixtureInts() { fixture_.release(memory_); }
  FixtureInts(const FixtureInts&) = delete;
  FixtureInts& operator=(const FixtureInts&) = delete;

  /// The values as [rows, size / rows], or with rank 1 if rows is 0.
  TensorView view(std::int64_t rows = 0) const {
    const std::int64_t extents[] = {rows == 0 ? size_ : rows, rows == 0 ? 0 : size_ / rows};
    TensorView view = make_contiguous_view(memory_, DType::int32, rows == 0 ? 1 : 2, extents);
    view.device = fixture_.device();
    return view;
  }

 private:
  BackendFixture& fixture_;
  std::int64_t size_;
  unsigned char* memory_;
};

}  // namespace

std::string random_calls_error(BackendFixture& fixture, std::uint32_t seed, std::int64_t most,
                               CaseChoice choice, const BackwardChoice& backward) {
  std::mt19937 rng(seed);
  const ParametricMask form = random_form(rng, most, most);
  const std::int64_t batch = pick(rng, 1, 3);
  const std::int64_t num_borders = pick(rng, 0, 1) == 0 ? 0 : pick(rng, 2, 7);
  const bool is_shared = pick(rng, 0, 1) == 0;
  choice.seed = seed + 1;
  for (int number = 0; number < 2; ++number) {
    const RandomCall call(rng, form, batch, num_borders, is_shared);
    const MaskCase expected =
        case_at_call(fmt::format("seed {} call {}", seed, number), form, call.elements);
    BackendBackwardCase test_case(fixture, expected, {batch, 4, 2}, choice, backward);
    AttentionShape planned = test_case.plan().shape;
    planned.q_lens = {form.q_len};
    planned.kv_lens = {form.kv_len};
    PlanOptions options;
    options.backend = fixture.backend();
    options.direction = Direction::backward;
    options.form = PlanForm::parametric;
    const auto plan = make_plan(block_mask_of(form), planned, test_case.plan().score, options);
    if (!plan) return expected.name + ": " + plan.error().message;
    const FixtureInts q_lens(fixture, call.q_lens), kv_lens(fixture, call.kv_lens),
        borders(fixture, call.borders);
    BackwardTensors tensors = test_case.tensors();
    tensors.q_lens = q_lens.view();
    tensors.kv_lens = kv_lens.view();
    if (num_borders > 0) tensors.cu_seqlens = borders.view(is_shared ? 0 : batch);
    const auto ran = test_case.run(*plan, tensors, test_case.options());
    if (!ran) return expected.name + ": " + ran.error().message;
    std::string error = test_case.check();
    if (!error.empty()) return error;
    if (!backward.deterministic) continue;
    const std::vector<unsigned char> bytes = test_case.result_bytes();
    const auto again = test_case.run(*plan, tensors, test_case.options(), 0x41);
    if (!again) return expected.name + ": " + again.error().message;
    if (test_case.result_bytes() != bytes) return expected.name + ": other bits";
  }
  return {};
}

}  // namespace fdma::testing
