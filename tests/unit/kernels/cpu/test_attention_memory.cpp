// Tests which memory attention reads and writes, and that its bits depend on nothing else: not on
// threads, runs, layouts or earlier contents of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "backend/attention_case.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::AttentionCase;
using testing::GuardSide;
using ::testing::HasSubstr;
using testing::MaskCase;
using testing::Order;
using testing::segments_of;
using testing::TensorChoice;

// Returns a mask of two elements of different lengths, with another mask for each of four heads.
MaskCase ragged_case() {
  std::mt19937 rng(21);
  std::vector<MaskCase> cases;
  for (const auto& [q_len, kv_len] : {std::pair{170, 75}, {45, 210}}) {
    for (int h = 0; h < 4; ++h)
      cases.push_back(testing::case_of("", testing::random_cells(rng, q_len, kv_len), {32, 32}));
  }
  return testing::combined("ragged", 2, 4, cases, {32, 32});
}

AttentionShape ragged_shape(const MaskCase& mask) {
  AttentionShape shape = testing::shape_for(mask.mask, 2, 4, 2);
  shape.head_dim = 40;
  shape.head_dim_v = 56;
  return shape;
}

PlanOptions small_tiles() {
  PlanOptions options;
  options.tile = {32, 64};
  return options;
}

TEST(AttentionBits, AreTheSameForAnyNumberOfThreadsAndEveryRun) {
  // A machine with fewer cores would give fewer threads than the call asks for.
  const tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 8);
  const MaskCase mask = ragged_case();
  const auto plan = make_plan(mask.mask, ragged_shape(mask), {}, small_tiles());
  ASSERT_TRUE(plan);
  AttentionCase attention(ragged_shape(mask), {}, {});
  AttentionOptions options;
  options.num_threads = 1;
  ASSERT_TRUE(attention.run(*plan, options));
  const auto bytes = attention.result_bytes();
  for (const int num_threads : {1, 2, 3, 8, 0}) {
    options.num_threads = num_threads;
    for (int run = 0; run < 3; ++run) {
      ASSERT_TRUE(attention.run(*plan, options));
      EXPECT_EQ(attention.result_bytes(), bytes) << num_threads;
    }
  }
}

TEST(AttentionBits, DoNotDependOnWhatTheOutputsHeld) {
  const MaskCase mask = ragged_case();
  const auto plan = make_plan(mask.mask, ragged_shape(mask), {}, small_tiles());
  ASSERT_TRUE(plan);
  AttentionCase attention(ragged_shape(mask), {}, {});
  ASSERT_TRUE(attention.run(*plan, {}, 0x00));
  const auto bytes = attention.result_bytes();
  EXPECT_EQ(attention.compare(mask), "");
  for (const unsigned char poison : {0xff, 0x7f, 0x41}) {
    ASSERT_TRUE(attention.run(*plan, {}, poison));
    EXPECT_EQ(attention.result_bytes(), bytes) << int{poison};
    EXPECT_EQ(attention.compare(mask), "") << int{poison};
  }
}

TEST(AttentionBits, DoNotDependOnStridesAndAlignment) {
  const MaskCase mask = ragged_case();
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    AttentionShape shape = ragged_shape(mask);
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
    const auto plan = make_plan(mask.mask, shape, {.key_bias = true}, small_tiles());
    ASSERT_TRUE(plan);
    std::vector<unsigned char> bytes;
    for (const Order order : {Order::rows, Order::head_major, Order::gaps, Order::reversed}) {
      for (const GuardSide side : {GuardSide::end, GuardSide::begin}) {
        TensorChoice choice;
        choice.order = order;
        choice.side = side;
        AttentionCase attention(shape, {.key_bias = true}, choice);
        ASSERT_TRUE(attention.run(*plan));
        if (bytes.empty()) bytes = attention.result_bytes();
        EXPECT_EQ(attention.compare(mask), "");
        EXPECT_EQ(attention.result_bytes(), bytes);
      }
    }
  }
}

// The heads of one KV tensor have stride 0, as those of an expanded tensor do.
TEST(AttentionTensors, MayRepeatAnInputByStrideZero) {
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(70, 70, [](auto q, auto k) { return k <= q; }), {16, 16});
  const AttentionShape narrow = testing::shape_for(mask.mask, 1, 1, 1);
  AttentionShape wide = testing::shape_for(mask.mask, 3, 4, 2);
  AttentionCase one(narrow, {}, {}), all(wide, {}, {});
  const auto one_plan = make_plan(mask.mask, narrow), all_plan = make_plan(mask.mask, wide);
  ASSERT_TRUE(one_plan && all_plan);
  ASSERT_TRUE(one.run(*one_plan));
  ASSERT_TRUE(all.run(*all_plan));
  AttentionTensors tensors = all.tensors();
  for (const auto& [tensor, from] :
       {std::pair{&tensors.q, one.q().view()}, std::pair{&tensors.kv.k, one.k().view()},
        std::pair{&tensors.kv.v, one.v().view()}}) {
    const auto extents = tensor->extents;
    *tensor = from;
    tensor->extents = extents;
    tensor->strides[0] = tensor->strides[2] = 0;
  }
  ASSERT_TRUE(attention_forward(*all_plan, tensors));
  for (std::int64_t b = 0; b < 3; ++b)
    for (std::int64_t h = 0; h < 4; ++h) EXPECT_EQ(all.out().head(b, h), one.out().head(0, 0));
}

TEST(AttentionTensors, MayBeLongerThanTheLengths) {
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(40, 50, [](auto q, auto k) { return k <= q; }), {16, 16});
  const AttentionShape shape = testing::shape_for(mask.mask, 2, 2, 1);
  // The storage has 2 x 60 rows, of which the first 40 (50) exist.
  AttentionShape longer = shape;
  longer.q_lens = {60};
  longer.kv_lens = {60};
  AttentionCase attention(longer, {.key_bias = true}, {});
  const auto plan = make_plan(mask.mask, shape, {.key_bias = true});
  ASSERT_TRUE(plan);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t k = 50; k < 60; ++k)
      attention.bias().set(b, k, 0, 0, std::numeric_limits<double>::quiet_NaN());
  }
  ASSERT_TRUE(attention.run(*plan, {}, 0x5a));
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      const double before = attention.out().get(b, 40, h, 0);
      for (std::int64_t q = 0; q < 60; ++q) {
        if (q < 40) {
          EXPECT_FALSE(std::isnan(attention.lse().get(b, q, h))) << q;
        } else {
          for (std::int64_t d = 0; d < 128; ++d)
            EXPECT_EQ(attention.out().get(b, q, h, d), before) << q;
        }
      }
      EXPECT_NE(attention.out().get(b, 39, h, 0), before);
    }
  }
}

TEST(AttentionTensors, AreNotWrittenButForTheOutputs) {
  const MaskCase mask = ragged_case();
  const auto plan = make_plan(mask.mask, ragged_shape(mask), {.key_bias = true}, small_tiles());
  ASSERT_TRUE(plan);
  AttentionCase attention(ragged_shape(mask), {.key_bias = true}, {});
  for (testing::TestTensor* tensor :
       {&attention.q(), &attention.k(), &attention.v(), &attention.bias()})
    tensor->make_read_only();
  ASSERT_TRUE(attention.run(*plan));
  EXPECT_EQ(attention.compare(mask), "");
}

TEST(AttentionTensors, MayLackLse) {
  const MaskCase mask = ragged_case();
  const auto plan = make_plan(mask.mask, ragged_shape(mask), {}, small_tiles());
  ASSERT_TRUE(plan);
  AttentionCase attention(ragged_shape(mask), {}, {});
  ASSERT_TRUE(attention.run(*plan));
  const auto bytes = attention.out().bytes();
  attention.out().fill(0xff);
  attention.lse().fill(0x33);
  AttentionTensors tensors = attention.tensors();
  tensors.lse = {};
  ASSERT_TRUE(attention_forward(*plan, tensors));
  EXPECT_EQ(attention.out().bytes(), bytes);
  for (const unsigned char byte : attention.lse().bytes()) ASSERT_EQ(byte, 0x33);
}

TEST(AttentionTensors, MayHaveNoRowsOrNoKeys) {
  for (const auto& [q_len, kv_len] : {std::pair{0, 0}, {0, 30}, {30, 0}}) {
    const MaskCase mask = testing::case_of(
        "none", testing::make_cells(q_len, kv_len, [](auto, auto) { return true; }), {16, 16});
    const AttentionShape shape = testing::shape_for(mask.mask, 2, 2, 1);
    EXPECT_EQ(testing::check_attention(mask, shape, {}, {}), "");
    EXPECT_EQ(testing::check_attention(mask, shape, {.key_bias = true}, {}), "");
    // Tensors without elements have no address.
    const auto plan = make_plan(mask.mask, shape);
    ASSERT_TRUE(plan);
    AttentionCase attention(shape, {}, {});
    AttentionTensors tensors = attention.tensors();
    if (kv_len == 0) tensors.kv.k.data = tensors.kv.v.data = nullptr;
    if (q_len == 0) tensors.q.data = tensors.out.data = nullptr;
    const auto ran = attention_forward(*plan, tensors);
    EXPECT_TRUE(ran) << ran.error().message;
  }
}

TEST(AttentionProgress, CountsEveryWorkTile) {
  const MaskCase mask = ragged_case();
  const auto plan = make_plan(mask.mask, ragged_shape(mask), {}, small_tiles());
  ASSERT_TRUE(plan);
  AttentionCase attention(ragged_shape(mask), {}, {});
  std::atomic<std::int64_t> num_work_tiles_done{5};
  std::atomic<bool> is_cancelled{false};
  AttentionOptions options;
  options.num_work_tiles_done = &num_work_tiles_done;
  options.is_cancelled = &is_cancelled;
  ASSERT_TRUE(attention.run(*plan, options));
  EXPECT_EQ(num_work_tiles_done,
            5 + static_cast<std::int64_t>(segments_of(*plan).work_tiles.size()));
  EXPECT_EQ(attention.compare(mask), "");
}

TEST(AttentionProgress, StopsWhereItIsCancelled) {
  const MaskCase mask = ragged_case();
  const auto plan = make_plan(mask.mask, ragged_shape(mask), {}, small_tiles());
  ASSERT_TRUE(plan);
  AttentionCase attention(ragged_shape(mask), {}, {});
  std::atomic<std::int64_t> num_work_tiles_done{0};
  std::atomic<bool> is_cancelled{true};
  AttentionOptions options;
  options.num_work_tiles_done = &num_work_tiles_done;
  options.is_cancelled = &is_cancelled;
  const auto ran = attention.run(*plan, options);
  ASSERT_FALSE(ran.has_value());
  EXPECT_EQ(ran.error().code, ErrorCode::io);
  EXPECT_THAT(ran.error().message, HasSubstr("interrupted"));
  EXPECT_EQ(num_work_tiles_done, 0);

  // Another thread cancels the call after the first work tile, while the call runs.
  is_cancelled = false;
  options.num_threads = 1;
  std::thread canceller([&] {
    while (num_work_tiles_done == 0) std::this_thread::yield();
    is_cancelled = true;
  });
  bool was_interrupted = false;
  for (int run = 0; run < 10000 && !was_interrupted; ++run)
    was_interrupted = !attention.run(*plan, options).has_value();
  canceller.join();
  EXPECT_TRUE(was_interrupted);
  EXPECT_EQ(attention.out().stray_writes(0xff), "");
}

// Several calls at the same time share nothing.
TEST(AttentionBits, AreTheSameForCallsSideBySide) {
  const MaskCase mask = ragged_case();
  const auto plan = make_plan(mask.mask, ragged_shape(mask), {}, small_tiles());
  ASSERT_TRUE(plan);
  AttentionCase first(ragged_shape(mask), {}, {});
  ASSERT_TRUE(first.run(*plan));
  const auto bytes = first.result_bytes();
  std::vector<std::thread> threads;
  std::atomic<int> num_same{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      AttentionCase attention(ragged_shape(mask), {}, {});
      AttentionOptions options;
      options.num_threads = 2;
      if (attention.run(*plan, options) && attention.result_bytes() == bytes) ++num_same;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_same, 3);
}

}  // namespace
}  // namespace fdma
