// The behaviour of launches. Every run must give the same bits, whatever the outputs held before.
// There are tests of streams, graphs, plans that are shared and moved, and offsets beyond 32 bits.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using gpu_test::OwnedPlan;
using gpu_test::OwnedStream;
using gpu_test::prepared;
using gpu_test::require;
using gpu_test::Workspace;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::Layout;
using testing::MaskCase;
using testing::segments_of;

// Two elements of different lengths with every kind of segment, for 16 heads.
const MaskCase& mask_of_all_kinds() {
  static const MaskCase mask = [] {
    std::mt19937 rng(21);
    std::vector<MaskCase> cases;
    for (const auto& [q_len, kv_len] : {std::pair{600, 1200}, {333, 1501}}) {
      for (int h = 0; h < 16; ++h)
        cases.push_back(h % 2 == 0 ? testing::tile_case(rng, q_len, kv_len)
                                   : testing::column_case(rng, q_len, kv_len));
    }
    return testing::combined("all kinds", 2, 16, cases, {128, 128});
  }();
  return mask;
}

CaseChoice choice_of(std::int32_t head_dim, std::uint64_t seed) {
  CaseChoice choice;
  choice.head_dim = head_dim;
  choice.has_bias = true;
  choice.seed = seed;
  choice.rows_per_head = 64;
  return choice;
}

class AttentionLaunch : public ::testing::TestWithParam<std::int32_t> {
 protected:
  void SetUp() override { FDMA_SKIP_WITHOUT_HOPPER(); }
  BackendAttentionCase test_case(std::uint64_t seed) {
    return {fixture_, mask_of_all_kinds(), {2, 16, 4}, choice_of(GetParam(), seed)};
  }
  GpuFixture fixture_;
};

TEST_P(AttentionLaunch, GivesTheSameBitsEveryRunWhateverOutputsHeld) {
  BackendAttentionCase test_case = this->test_case(1);
  std::vector<unsigned char> bytes;
  for (const unsigned char poison : {0xff, 0x00, 0x7f, 0x41, 0xff}) {
    for (int run = 0; run < 3; ++run) {
      const auto ran = test_case.run(poison);
      ASSERT_TRUE(ran) << ran.error().message;
      if (bytes.empty()) bytes = test_case.result_bytes();
      ASSERT_EQ(test_case.result_bytes(), bytes) << "poison " << int{poison} << " run " << run;
    }
    EXPECT_EQ(test_case.check(), "");
  }
}

TEST_P(AttentionLaunch, GivesTheSameBitsForEveryLayoutOfTheTensors) {
  std::vector<unsigned char> bytes;
  for (const Layout layout : {Layout::rows, Layout::head_major, Layout::padded}) {
    CaseChoice choice = choice_of(GetParam(), 2);
    choice.layout = layout;
    BackendAttentionCase test_case(fixture_, mask_of_all_kinds(), {2, 16, 4}, choice);
    const auto ran = test_case.run();
    ASSERT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(test_case.check(), "");
    if (bytes.empty()) bytes = test_case.result_bytes();
    EXPECT_EQ(test_case.result_bytes(), bytes);
  }
}

TEST_P(AttentionLaunch, GivesTheSameBitsWithoutLse) {
  BackendAttentionCase with = this->test_case(3);
  CaseChoice choice = choice_of(GetParam(), 3);
  choice.wants_lse = false;
  BackendAttentionCase without(fixture_, mask_of_all_kinds(), {2, 16, 4}, choice);
  ASSERT_TRUE(with.run() && without.run());
  EXPECT_EQ(without.check(), "");
  EXPECT_EQ(with.out().bytes(), without.out().bytes());
}

TEST_P(AttentionLaunch, RunsOnSeveralStreamsAtOnceByOnePlan) {
  constexpr int kStreams = 3, kRounds = 4;
  BackendAttentionCase first = this->test_case(4), second = this->test_case(5),
                       third = this->test_case(6);
  const std::array<BackendAttentionCase*, kStreams> test_cases{&first, &second, &third};
  std::array<std::vector<unsigned char>, kStreams> wanted;
  for (std::size_t i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(test_cases[i]->run());
    ASSERT_EQ(test_cases[i]->check(), "");
    wanted[i] = test_cases[i]->result_bytes();
  }
  const OwnedPlan plan = prepared(first.plan());
  require(cudaDeviceSynchronize(), "upload");
  const std::array<OwnedStream, kStreams> streams;
  const std::array<Workspace, kStreams> workspaces{Workspace(*plan), Workspace(*plan),
                                                   Workspace(*plan)};
  for (BackendAttentionCase* test_case : test_cases) test_case->poison(0xff);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kStreams; ++i) {
      const auto ran =
          plan->forward(test_cases[i]->tensors(), {workspaces[i].data(), streams[i].get()},
                        test_cases[i]->options());
      ASSERT_TRUE(ran) << ran.error().message;
    }
  }
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams[i].wait();
    workspaces[i].require_canaries();
    test_cases[i]->fetch();
    EXPECT_EQ(test_cases[i]->result_bytes(), wanted[i]) << i;
  }
}

// One workspace may serve launches that follow each other on one stream, of several plans.
TEST_P(AttentionLaunch, ReusesAWorkspaceOnOneStream) {
  BackendAttentionCase first = this->test_case(7);
  std::mt19937 rng(9);
  const MaskCase other_mask = testing::tile_case(rng, 1000, 700);
  BackendAttentionCase second(fixture_, other_mask, {1, 4, 4}, choice_of(GetParam(), 8));
  ASSERT_TRUE(first.run() && second.run());
  const auto first_bytes = first.result_bytes(), second_bytes = second.result_bytes();
  const OwnedStream stream;
  const OwnedPlan first_plan = prepared(first.plan(), stream.get()),
                  second_plan = prepared(second.plan(), stream.get());
  const Workspace workspace(
      first_plan->workspace_bytes() > second_plan->workspace_bytes() ? *first_plan : *second_plan);
  first.poison(0xff);
  second.poison(0xff);
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(
        first_plan->forward(first.tensors(), {workspace.data(), stream.get()}, first.options()));
    ASSERT_TRUE(
        second_plan->forward(second.tensors(), {workspace.data(), stream.get()}, second.options()));
  }
  stream.wait();
  first.fetch();
  second.fetch();
  EXPECT_EQ(first.result_bytes(), first_bytes);
  EXPECT_EQ(second.result_bytes(), second_bytes);
}

// A kept workspace serves forward launches of several plans, those that reset its counter too.
TEST_P(AttentionLaunch, KeepsAWorkspace) {
  BackendAttentionCase first = this->test_case(12);
  std::mt19937 rng(13);
  const MaskCase other_mask = testing::tile_case(rng, 40, 60);
  BackendAttentionCase second(fixture_, other_mask, {1, 4, 4}, choice_of(GetParam(), 14));
  ASSERT_TRUE(first.run() && second.run());
  const auto first_bytes = first.result_bytes(), second_bytes = second.result_bytes();
  const OwnedStream stream;
  const OwnedPlan first_plan = prepared(first.plan(), stream.get()),
                  second_plan = prepared(second.plan(), stream.get());
  const Workspace workspace(
      first_plan->workspace_bytes() > second_plan->workspace_bytes() ? *first_plan : *second_plan);
  ASSERT_TRUE(first_plan->prepare_workspace(workspace.data(), stream.get()));
  for (int round = 0; round < 5; ++round) {
    first.poison(0xff);
    second.poison(0xff);
    ASSERT_TRUE(first_plan->forward(first.tensors(), {workspace.data(), stream.get(), true},
                                    first.options()));
    ASSERT_TRUE(second_plan->forward(second.tensors(), {workspace.data(), stream.get(), true},
                                     second.options()));
    if (round == 2) {
      ASSERT_TRUE(
          first_plan->forward(first.tensors(), {workspace.data(), stream.get()}, first.options()));
    }
    stream.wait();
    first.fetch();
    second.fetch();
    ASSERT_EQ(first.result_bytes(), first_bytes) << "round " << round;
    ASSERT_EQ(second.result_bytes(), second_bytes) << "round " << round;
  }
  workspace.require_canaries();
}

TEST_P(AttentionLaunch, IsCapturedIntoAGraphAndReplayedWithNewInputs) {
  BackendAttentionCase test_case = this->test_case(10), other = this->test_case(11);
  ASSERT_TRUE(test_case.run() && other.run());
  const auto bytes = test_case.result_bytes(), other_bytes = other.result_bytes();
  const OwnedStream stream;
  const OwnedPlan plan = prepared(test_case.plan(), stream.get());
  const Workspace workspace(*plan);
  stream.wait();

  const auto call = [&] {
    return plan->forward(test_case.tensors(), {workspace.data(), stream.get()},
                         test_case.options());
  };
  const gpu_test::CapturedGraph graph(stream, call, 2);

  // Nothing ran yet.
  test_case.poison(0x41);
  test_case.fetch();
  EXPECT_EQ(test_case.out().stray_writes(), "");
  for (int replay = 0; replay < 3; ++replay) {
    test_case.poison(0xff);
    graph.replay();
    test_case.fetch();
    EXPECT_EQ(test_case.result_bytes(), bytes) << replay;
  }
  test_case.q().randomize(11 * 4, 1);
  test_case.k().randomize(11 * 4 + 1, 1);
  test_case.v().randomize(11 * 4 + 2, 1);
  test_case.bias().randomize(11 * 4 + 3, 1);
  test_case.poison(0xff);
  graph.replay();
  workspace.require_canaries();
  test_case.fetch();
  EXPECT_EQ(test_case.result_bytes(), other_bytes);
}

TEST_P(AttentionLaunch, PlansSayWhatTheyAre) {
  BackendAttentionCase test_case = this->test_case(12);
  ASSERT_TRUE(test_case.run());
  const auto bytes = test_case.result_bytes();
  const OwnedPlan plan = prepared(test_case.plan());
  EXPECT_EQ(plan->backend(), Backend::sm90);
  EXPECT_EQ(plan->shape(), test_case.plan().shape);
  EXPECT_EQ(plan->score(), test_case.plan().score);
  EXPECT_EQ(plan->direction(), Direction::forward);
  EXPECT_EQ(plan->tile(), (BlockShape{128, 128}));
  EXPECT_EQ(plan->device(), 0);
  // The device holds 6 of the 8 bytes of a list entry.
  const auto num_entries =
      static_cast<std::int64_t>(segments_of(test_case.plan()).kv_index_entries.size());
  EXPECT_GE(plan->size_bytes(), test_case.plan().size_bytes() - 2 * num_entries);
  EXPECT_LE(plan->size_bytes(), test_case.plan().size_bytes() + 64 * 1024);
  EXPECT_GT(plan->workspace_bytes(), 0);
  const Workspace workspace(*plan);
  test_case.poison(0xff);
  ASSERT_TRUE(plan->forward(test_case.tensors(), {workspace.data()}, test_case.options()));
  require(cudaDeviceSynchronize(), "attention_forward");
  test_case.fetch();
  EXPECT_EQ(test_case.result_bytes(), bytes);
}

TEST_P(AttentionLaunch, APlanMayGoWhileItsKernelRuns) {
  BackendAttentionCase test_case = this->test_case(13);
  ASSERT_TRUE(test_case.run());
  const auto bytes = test_case.result_bytes();
  const OwnedStream stream;
  OwnedPlan plan = prepared(test_case.plan(), stream.get());
  const Workspace workspace(*plan);
  test_case.poison(0xff);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        plan->forward(test_case.tensors(), {workspace.data(), stream.get()}, test_case.options()));
  }
  plan.reset();
  stream.wait();
  test_case.fetch();
  EXPECT_EQ(test_case.result_bytes(), bytes);
}

TEST_P(AttentionLaunch, OfAPlanOnAnotherDeviceIsRejected) {
  int num_devices = 0;
  require(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  if (num_devices < 2) GTEST_SKIP() << "needs two GPUs";
  BackendAttentionCase test_case = this->test_case(14);
  const OwnedPlan plan = prepared(test_case.plan());
  const Workspace workspace(*plan);
  require(cudaSetDevice(1), "cudaSetDevice");
  const auto ran = plan->forward(test_case.tensors(), {workspace.data()});
  require(cudaSetDevice(0), "cudaSetDevice");
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::unsupported) << ran.error().message;
}

INSTANTIATE_TEST_SUITE_P(HeadDim, AttentionLaunch, ::testing::Values(64, 128));

}  // namespace
}  // namespace fdma
