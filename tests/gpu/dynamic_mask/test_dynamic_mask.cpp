// Dynamic Mask Attention on the GPU: whole calls against float64.
#include <gtest/gtest.h>

#include "backend/backend_dynamic_mask_case.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

class DynamicMaskOnGpu : public ::testing::TestWithParam<std::size_t> {};

TEST_P(DynamicMaskOnGpu, EqualsFloat64) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture;
  EXPECT_EQ(testing::run_dynamic_mask(fixture, testing::dynamic_mask_cases()[GetParam()]), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, DynamicMaskOnGpu,
                         ::testing::Range(std::size_t{0}, testing::dynamic_mask_cases().size()));

}  // namespace
}  // namespace fdma
