// Tests the settings of HDF5 that FDMA changes while it is inside the library, and restores.
#include <gtest/gtest.h>
#include <hdf5.h>

#include "io/hdf5/h5_handle.hpp"

namespace fdma::io {
namespace {

unsigned plugin_state() {
  unsigned state = 77;
  EXPECT_GE(H5PLget_loading_state(&state), 0);
  return state;
}

TEST(Session, LoadsNoPluginsAndLeavesTheSettingAsItWas) {
  ASSERT_GE(H5PLset_loading_state(H5PL_ALL_PLUGIN), 0);
  const unsigned before = plugin_state();
  EXPECT_NE(before, 0u);
  {
    const Session session;
    EXPECT_EQ(plugin_state(), 0u);
    {
      const Session nested;
      EXPECT_EQ(plugin_state(), 0u);
    }
    EXPECT_EQ(plugin_state(), 0u);
  }
  EXPECT_EQ(plugin_state(), before);
}

TEST(Session, IsQuietAndLeavesPrintingAsItWas) {
  H5E_auto2_t before = nullptr, after = nullptr, inside = nullptr;
  void* data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &before, &data);
  {
    const Session session;
    H5Eget_auto2(H5E_DEFAULT, &inside, &data);
    EXPECT_EQ(inside, nullptr);
  }
  H5Eget_auto2(H5E_DEFAULT, &after, &data);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace fdma::io
