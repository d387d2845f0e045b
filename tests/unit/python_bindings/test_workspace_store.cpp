// Who shares a workspace, when one is replaced or freed, and that graphs keep theirs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "attention/workspace_store.hpp"

namespace fdma::python {
namespace {

/// Memory that counts what is alive, in place of that of a GPU.
class FakeMemory {
 public:
  static inline std::atomic<std::int64_t> bytes_alive = 0;
  static inline std::int64_t most_bytes = 1'000'000;

  FakeMemory() = default;
  FakeMemory(FakeMemory&& other) noexcept { *this = std::move(other); }
  FakeMemory& operator=(FakeMemory&& other) noexcept {
    bytes_alive -= size_bytes();
    data_ = std::move(other.data_);
    other.data_.reset();
    return *this;
  }
  ~FakeMemory() { bytes_alive -= size_bytes(); }

  static Result<FakeMemory> allocate(std::int64_t size_bytes) {
    if (size_bytes > most_bytes) return Error{ErrorCode::out_of_memory, "no memory"};
    FakeMemory memory;
    memory.data_ = std::make_unique<std::vector<char>>(static_cast<std::size_t>(size_bytes));
    bytes_alive += size_bytes;
    return Result<FakeMemory>(std::move(memory));
  }
  void* data() const { return data_ == nullptr ? nullptr : data_->data(); }
  std::int64_t size_bytes() const {
    return data_ == nullptr ? 0 : static_cast<std::int64_t>(data_->size());
  }

 private:
  std::unique_ptr<std::vector<char>> data_;
};

using Store = WorkspaceStore<FakeMemory>;

void* address(Result<Store::Lease> lease) { return lease->data(); }

TEST(WorkspaceStore, StreamsOfADeviceHaveOneEach) {
  Store store;
  void* const first = address(store.shared(0, 1, 100));
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(address(store.shared(0, 1, 40)), first);
  EXPECT_NE(address(store.shared(0, 2, 100)), first);
  EXPECT_NE(address(store.shared(1, 1, 100)), first);
  EXPECT_EQ(store.size_bytes(), 300);
  EXPECT_EQ(FakeMemory::bytes_alive, 300);
}

TEST(WorkspaceStore, OneThatIsTooSmallIsReplacedAndFreed) {
  Store store;
  address(store.shared(0, 1, 100));
  address(store.shared(0, 1, 5000));
  EXPECT_EQ(store.size_bytes(), 5000);
  EXPECT_EQ(FakeMemory::bytes_alive, 5000);
  const Result<Store::Lease> refused = store.shared(0, 1, FakeMemory::most_bytes + 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(store.size_bytes(), 5000) << "the former one is kept";
  address(store.shared(0, 1, 5000));
}

TEST(WorkspaceStore, ItIsPreparedOnlyAfterACallThatSaysSo) {
  Store store;
  const auto next = [&](std::int64_t size_bytes, bool leaves_prepared) {
    Store::Lease lease = *store.shared(0, 1, size_bytes);
    const bool was_prepared = lease.is_prepared();
    if (leaves_prepared) lease.leave_prepared();
    return was_prepared;
  };
  EXPECT_FALSE(next(100, true)) << "new memory";
  EXPECT_TRUE(next(100, true));
  EXPECT_TRUE(next(100, false));
  EXPECT_FALSE(next(100, true)) << "the call before wrote to it";
  EXPECT_FALSE(next(200, true)) << "it grew";
  EXPECT_TRUE(next(150, true));
  Store::Lease none;
  none.leave_prepared();
  EXPECT_FALSE(none.is_prepared());
  EXPECT_EQ(none.data(), nullptr);
}

TEST(WorkspaceStore, ACaptureHasItsOwnWhichStaysWhereItIs) {
  Store store;
  const StreamNumber capture{7, 1};
  void* const pointed_to = address(store.captured(1, capture, 100));
  EXPECT_NE(address(store.shared(0, 7, 100)), pointed_to);
  EXPECT_EQ(address(store.captured(1, capture, 100)), pointed_to) << "calls of one capture share";
  EXPECT_NE(address(store.captured(1, capture, 900)), pointed_to) << "it does not grow";
  EXPECT_NE(address(store.captured(1, {7, 2}, 100)), pointed_to) << "another capture";
  EXPECT_NE(address(store.captured(2, capture, 100)), pointed_to) << "another object";
  store.release_shared();
  for (std::uint64_t stream = 0; stream < 200; ++stream) address(store.shared(0, stream, 10));
  store.release_shared();
  EXPECT_EQ(store.size_bytes(), 100 + 900 + 100 + 100);
  EXPECT_EQ(address(store.captured(1, capture, 100)), pointed_to);
  store.release_captured(1);
  EXPECT_EQ(store.size_bytes(), 100) << "that of the other object";
  store.release_captured(2);
  store.release_captured(3);
  EXPECT_EQ(FakeMemory::bytes_alive, 0);
}

TEST(WorkspaceStore, StreamsThatAreGoneAreForgotten) {
  Store store;
  for (std::uint64_t stream = 0; stream < 1000; ++stream) address(store.shared(0, stream, 10));
  EXPECT_LE(store.size_bytes(), 64 * 10);
  EXPECT_EQ(store.size_bytes(), FakeMemory::bytes_alive);
}

TEST(WorkspaceStore, OneThatACallHasIsFreedAfterIt) {
  Store store;
  {
    const Store::Lease lease = *store.shared(0, 1, 100);
    store.release_shared();
    EXPECT_EQ(store.size_bytes(), 0);
    EXPECT_EQ(FakeMemory::bytes_alive, 100);
    EXPECT_NE(address(store.shared(0, 1, 100)), lease.data());
  }
  EXPECT_EQ(FakeMemory::bytes_alive, 100);
}

TEST(WorkspaceStore, ThreadsTakeTurns) {
  Store store;
  std::atomic<int> num_inside = 0, num_overlaps = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (std::int64_t call = 1; call <= 500; ++call) {
        const Store::Lease lease = *store.shared(0, 1, 10 + (call * 7 + i) % 90);
        if (++num_inside > 1) ++num_overlaps;
        static_cast<char*>(lease.data())[0] = 1;
        --num_inside;
        if (call % 50 == 0) address(store.captured(static_cast<std::uint64_t>(i), {1, 1}, 10));
        if (call % 90 == 0) store.release_captured(static_cast<std::uint64_t>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_overlaps, 0);
  EXPECT_LE(store.size_bytes(), 99 + 4 * 10);
}

}  // namespace
}  // namespace fdma::python
