// Memory, copies, fills, streams and timers of the GPU, for callers that do not use CUDA
// themselves.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "device_array.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {
namespace {

// A stream that lives as long as a test.
class TestStream {
 public:
  TestStream() { gpu_test::require(cudaStreamCreate(&stream_), "cudaStreamCreate"); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { cudaStreamDestroy(stream_); }
  Stream get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(DeviceMemory, HoldsWhatIsCopiedToIt) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::vector<int> values(1'000'003), copy(values.size());
  std::iota(values.begin(), values.end(), 7);
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(int));
  Result<DeviceMemory> memory = DeviceMemory::allocate(bytes);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(memory->size_bytes(), bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 256, 0u);
  const DeviceMemory moved = *std::move(memory);
  ASSERT_TRUE(copy_to_device(moved.data(), values.data(), bytes));
  ASSERT_TRUE(copy_to_host(copy.data(), moved.data(), bytes));
  EXPECT_EQ(copy, values);
}

TEST(DeviceMemory, NothingHasAnAddressToo) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const Result<DeviceMemory> memory = DeviceMemory::allocate(0);
  ASSERT_TRUE(memory);
  EXPECT_NE(memory->data(), nullptr);
  EXPECT_EQ(memory->size_bytes(), 0);
}

TEST(DeviceMemory, RejectsMoreThanThereIs) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const Result<DeviceMemory> memory = DeviceMemory::allocate(std::int64_t{1} << 50);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(DeviceMemory, IsFilledUpToItsEndAndNoFurther) {
  FDMA_SKIP_WITHOUT_HOPPER();
  constexpr std::int64_t kCount = 300'001;
  std::vector<float> values(kCount + 1, 5.0f);
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  const Result<DeviceMemory> memory = DeviceMemory::allocate(bytes);
  ASSERT_TRUE(memory);
  ASSERT_TRUE(copy_to_device(memory->data(), values.data(), bytes));
  const float kLowest = -std::numeric_limits<float>::infinity();
  ASSERT_TRUE(fill_with(static_cast<float*>(memory->data()), kLowest, kCount));
  ASSERT_TRUE(fill_with_zeros(memory->data(), 4 * 10));
  ASSERT_TRUE(copy_to_host(values.data(), memory->data(), bytes));
  for (std::int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(values[static_cast<std::size_t>(i)], i < 10 ? 0.0f : kLowest) << i;
  }
  EXPECT_EQ(values.back(), 5.0f);
}

TEST(DeviceMemory, IsTakenWhileAStreamIsCaptured) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const TestStream stream;
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  const Result<StreamNumber> captured = number_of(stream.get());
  {
    const Result<DeviceMemory> memory = DeviceMemory::allocate(1000);
    EXPECT_TRUE(memory);
  }
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  ASSERT_TRUE(captured);
  EXPECT_NE(captured->capture, 0u);
  const Result<StreamNumber> later = number_of(stream.get());
  ASSERT_TRUE(later);
  EXPECT_EQ(later->capture, 0u);
}

TEST(StreamNumber, IsNeverUsedTwice) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::vector<StreamNumber> numbers{*number_of(nullptr)};
  for (int i = 0; i < 3; ++i) {
    const TestStream stream;
    const Result<StreamNumber> number = number_of(stream.get());
    ASSERT_TRUE(number) << number.error().message;
    for (const StreamNumber& other : numbers) EXPECT_FALSE(*number == other);
    numbers.push_back(*number);
  }
}

TEST(StreamTimer, MeasuresWorkOnItsStream) {
  FDMA_SKIP_WITHOUT_HOPPER();
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const Result<DeviceMemory> memory = DeviceMemory::allocate(kBytes);
  ASSERT_TRUE(memory);
  Result<StreamTimer> timer = StreamTimer::make();
  ASSERT_TRUE(timer);
  const TestStream stream;
  double seconds[2];
  for (double& each : seconds) {
    ASSERT_TRUE(timer->start(stream.get()));
    ASSERT_TRUE(fill_with_zeros(memory->data(), kBytes, stream.get()));
    ASSERT_TRUE(timer->stop(stream.get()));
    const Result<double> measured = timer->seconds();
    ASSERT_TRUE(measured);
    each = *measured;
  }
  EXPECT_GT(seconds[1], 1e-4);  // 10 TB/s
  EXPECT_LT(seconds[1], 1e-1);
  EXPECT_TRUE(wait_for(stream.get()));
}

TEST(CurrentDevice, RejectsADeviceThatIsNotThere) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const Result<CurrentDevice> absent = CurrentDevice::make(1000);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::unsupported);
  EXPECT_TRUE(CurrentDevice::make(0));
  EXPECT_EQ(*current_device(), 0);
  EXPECT_FALSE(current_device_name()->empty());
}

}  // namespace
}  // namespace fdma
