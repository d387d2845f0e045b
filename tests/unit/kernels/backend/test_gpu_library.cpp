// What functions for a GPU answer where there is none: the reason, with one text for all of them,
// after what is wrong with the arguments.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu_library.hpp"
#include "fdma/kernels/cusparse_attention.hpp"
#include "fdma/kernels/device_incremental_topk.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/zoh_backward_device.hpp"
#include "fdma/kernels/zoh_device.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;

// The error of a call that must fail.
template <class T>
Error error_of(const Result<T>& result) {
  if (!result) return result.error();
  ADD_FAILURE() << "expected an error";
  return {ErrorCode::internal, "none"};
}

// One batch element, two keys and one head of two elements.
struct Tensors {
  float numbers[4] = {};

  TensorView view(Device device, std::vector<std::int64_t> extents) {
    TensorView view = make_contiguous_view(numbers, DType::float32,
                                           static_cast<int>(extents.size()), extents.data());
    view.device = device;
    return view;
  }
  MutableTensorView mutable_view(Device device, std::vector<std::int64_t> extents) {
    const TensorView read = view(device, std::move(extents));
    return {numbers, read.dtype, read.device, read.rank, read.extents, read.strides};
  }
  ZohBackwardTensors gradients(Device device) {
    ZohBackwardTensors tensors;
    tensors.values = view(device, {1, 2, 1, 2});
    tensors.dt_proj = view(device, {1, 2});
    tensors.a_coef = view(device, {1});
    tensors.dscores = view(device, {1, 1, 2});
    tensors.dvalues = mutable_view(device, {1, 2, 1, 2});
    return tensors;
  }
  Result<void> scores(Device device) {
    return zoh_scores(view(device, {1, 2, 1, 2}), view(device, {1, 2}), view(device, {1}),
                      mutable_view(device, {1, 1, 2}), ZohMode::exp, nullptr);
  }
};

TEST(GpuLibrary, IsRefusedWithOneTextByEveryFunctionOfABuildWithoutCuda) {
  const auto library = gpu_library();
  if (library) GTEST_SKIP() << "this build has CUDA";
  EXPECT_THAT(library.error().message, HasSubstr("FDMA_CUDA=OFF"));
  std::uint32_t word = 0;
  float number = 0;
  const std::vector<std::pair<const char*, Error>> plain{
      {"allocate", error_of(DeviceMemory::allocate(16))},
      {"copy_to_device", error_of(copy_to_device(&word, &word, 4))},
      {"copy_to_host", error_of(copy_to_host(&word, &word, 4))},
      {"copy_on_device", error_of(copy_on_device(&word, &word, 4))},
      {"fill_with_zeros", error_of(fill_with_zeros(&word, 4))},
      {"fill_with", error_of(fill_with(&number, 1.0F, 1))},
      {"CurrentDevice", error_of(CurrentDevice::make(0))},
      {"current_device", error_of(current_device())},
      {"current_device_name", error_of(current_device_name())},
      {"current_device_multiprocessors", error_of(current_device_multiprocessors())},
      {"number_of", error_of(number_of(nullptr))},
      {"wait_for", error_of(wait_for(nullptr))},
      {"StreamTimer", error_of(StreamTimer::make())},
  };
  for (const auto& [name, error] : plain) {
    EXPECT_EQ(error.code, ErrorCode::unsupported) << name;
    EXPECT_EQ(error.message, library.error().message) << name;
  }
  Tensors tensors;
  const std::vector<std::pair<const char*, Error>> of_the_backend{
      {"DeviceTopk", error_of(DeviceTopk::make(TopkRows{}, 1))},
      {"DeviceIncrementalTopk", error_of(DeviceIncrementalTopk::make({}))},
      {"zoh_scores", error_of(tensors.scores(Device::cuda))},
      {"zoh_scores_backward", error_of(zoh_scores_backward(tensors.gradients(Device::cuda),
                                                           ZohMode::exp, nullptr, nullptr))},
  };
  for (const auto& [name, error] : of_the_backend) {
    EXPECT_EQ(error.code, ErrorCode::unsupported) << name;
    EXPECT_EQ(error.message, "backend sm90: " + library.error().message + "; available: cpu")
        << name;
  }
  EXPECT_EQ(zoh_backward_workspace_bytes({1, 2, 1, 2, true}), 0);
  free_device_memory(nullptr);
}

TEST(GpuLibrary, HasReasonsOfItsOwnForCusparse) {
  const auto library = gpu_cusparse();
  if (library) GTEST_SKIP() << "this build has the cuSPARSE path";
  EXPECT_EQ(library.error().code, ErrorCode::unsupported);
  EXPECT_THAT(library.error().message, HasSubstr("-DFDMA_CUSPARSE_INCLUDE_DIR="));
  EXPECT_EQ(error_of(cusparse_version()).message, library.error().message);
}

// A build without CUDA checks tensors before it says so, as a build with CUDA does.
TEST(GpuLibrary, IsAskedAfterTensorsWereChecked) {
  Tensors tensors;
  EXPECT_EQ(error_of(tensors.scores(Device::cpu)).message,
            "values: on the host; this is the GPU's zoh_scores");
  EXPECT_EQ(
      error_of(zoh_scores_backward(tensors.gradients(Device::cpu), ZohMode::exp, nullptr, nullptr))
          .message,
      "values: on the host; this is the GPU's zoh_scores_backward");
}

}  // namespace
}  // namespace fdma
