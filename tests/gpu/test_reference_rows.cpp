// The reference on the GPU, with which GPU cases are compared, agrees with that of tests/reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"
#include "reference_rows.hpp"

namespace fdma {
namespace {

using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::MaskCase;

TEST(ReferenceRows, AreThoseOfTheHost) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(3);
  const MaskCase mask = testing::combined(
      "two", 2, 1, {testing::column_case(rng, 150, 300), testing::tile_case(rng, 70, 190)},
      {128, 128});
  gpu_test::GpuFixture fixture;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    CaseChoice choice;
    choice.dtype = dtype;
    choice.head_dim = 64;
    choice.layout = testing::Layout::padded;
    choice.has_bias = dtype == DType::float16;
    const BackendAttentionCase test_case(fixture, mask, {2, 4, 2}, choice);
    const testing::ReferenceProblem problem = test_case.problem();
    const auto host = testing::reference_on_host(problem);
    const auto device = gpu_test::reference_on_device(problem);
    ASSERT_EQ(device.out.size(), host.out.size());
    ASSERT_EQ(device.lse.size(), host.lse.size());
    double host_error = 0, device_error = 0;
    for (std::size_t i = 0; i < host.out.size(); ++i) {
      ASSERT_NEAR(device.out[i], host.out[i], 1e-12) << i;
      host_error = std::max(host_error, std::fabs(host.explicit_out[i] - host.out[i]));
      device_error = std::max(device_error, std::fabs(device.explicit_out[i] - host.out[i]));
    }
    for (std::size_t i = 0; i < host.lse.size(); ++i) {
      if (std::isinf(host.lse[i])) {
        ASSERT_EQ(device.lse[i], host.lse[i]) << i;
      } else {
        ASSERT_NEAR(device.lse[i], host.lse[i], 1e-12) << i;
        ASSERT_NEAR(device.explicit_lse[i], host.explicit_lse[i], 1e-5) << i;
      }
    }
    // The sums are in another order, so the errors agree up to a rounding or two.
    EXPECT_GT(host_error, 0);
    EXPECT_NEAR(device_error / host_error, 1, 0.15);
  }
}

}  // namespace
}  // namespace fdma
