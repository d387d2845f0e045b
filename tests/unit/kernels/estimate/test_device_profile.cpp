// Tests device profiles: validation, interpolation between head sizes, JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "estimate/profile_members.hpp"
#include "estimate/profile_texts.hpp"
#include "fdma/kernels/device_profile.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;

DeviceProfile small_profile() {
  DeviceProfile profile;
  profile.name = "test";
  profile.source = "made up";
  profile.is_provisional = false;
  profile.num_workers = 3;
  profile.memory_bytes_per_us = 1000;
  profile.near_bytes = 1e6;
  profile.far_bytes = 1.5e7;
  profile.stripe_rows = 64;
  profile.skips_dead_keys = true;
  for (const std::int32_t head_dim : {64, 128}) {
    const double scale = head_dim / 64.0;
    profile.kernels.push_back({Direction::forward,
                               DType::float32,
                               head_dim,
                               2 * scale,
                               {{{128, 128},
                                 {0.25 * scale, 10 * scale},
                                 {1 * scale, 11 * scale},
                                 {2 * scale, 12 * scale},
                                 {3 * scale, 13 * scale},
                                 {4 * scale, 14 * scale},
                                 5 * scale,
                                 0.5 * scale},
                                {{64, 32}, {0, 1.5}, {0, 2}, {0, 3}, {0.1, 0}, {0, 0}, 0.1}}});
  }
  return profile;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(DeviceProfile, JsonRoundTripIsExact) {
  DeviceProfile profile = small_profile();
  profile.kernels[0].tiles[0].full.compute_us = 0.1 + 1e-17;
  profile.kernels[1].tiles[0].item_us = 1.0 / 3.0;
  const Result<DeviceProfile> read = profile_from_json(to_json(profile));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, profile);
  for (const std::string_view name : shipped_profile_names()) {
    const DeviceProfile shipped = *shipped_profile(name);
    const Result<DeviceProfile> again = profile_from_json(to_json(shipped));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, shipped);
  }
}

TEST(DeviceProfile, WhatOnlySomeKernelsHaveMayBeMissing) {
  DeviceProfile profile = small_profile();
  const std::string plain = to_json(profile);
  profile.burst_us = 4000;
  profile.sustained_us = 3e5;
  profile.kernels[1].is_provisional = true;
  profile.kernels[1].overlaps_masks = true;
  profile.kernels[1].ahead_us = 2.5;
  profile.kernels[1].sustained_slowdown = 0.125;
  profile.kernels[1].gather_slowdown = 0.0625;
  EXPECT_EQ(*profile_from_json(to_json(profile)), profile);
  const std::string of_tiles = replaced(to_json(profile), "   \"gather_slowdown\": 0.0625,\n", "");
  const Result<DeviceProfile> without_chunks = profile_from_json(of_tiles);
  ASSERT_TRUE(without_chunks) << without_chunks.error().message;
  EXPECT_EQ(without_chunks->kernels[1].gather_slowdown, 0.125);
  // Such a profile was written before these members existed.
  std::string old = plain;
  for (const char* line : {" \"burst_us\": 0.0,\n", " \"sustained_us\": 0.0,\n"}) {
    old = replaced(old, line, "");
  }
  for (const char* member :
       {"\"provisional\": false", "\"overlaps_masks\": false", "\"ahead_us\": 0.0",
        "\"sustained_slowdown\": 0.0", "\"gather_slowdown\": 0.0"}) {
    for (int kernel = 0; kernel < 2; ++kernel) {
      old = replaced(old, std::string("   ") + member + ",\n", "");
    }
  }
  EXPECT_EQ(old.find("ahead_us"), std::string::npos);
  const Result<DeviceProfile> read = profile_from_json(old);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, small_profile());
}

// Calibration did not always measure these, and older files lack them.
TEST(DeviceProfile, TakesAssumedCostsWhereAFileHasNone) {
  const std::string text = to_json(*shipped_profile("h200"));
  const DeviceProfile whole = *profile_from_json(text);
  std::string old;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin) + 1;
    const std::string line = text.substr(begin, end - begin);
    const bool is_new =
        std::any_of(std::begin(kKernelNumbers), std::end(kKernelNumbers), [&](const auto& each) {
          return each.is_assumed && line.find('"' + std::string(each.name) + '"') != line.npos;
        });
    if (!is_new && line.find("\"assumed\"") == line.npos) old += line;
    begin = end;
  }
  EXPECT_EQ(old.find("combine_us"), std::string::npos);
  const Result<DeviceProfile> read = profile_from_json(old);
  ASSERT_TRUE(read) << read.error().message;
  for (std::size_t i = 0; i < read->kernels.size(); ++i) {
    EXPECT_TRUE(read->kernels[i].is_assumed);
    const KernelCosts wanted =
        assumed_costs(whole.kernels[i], Backend::sm90, whole.memory_bytes_per_us);
    for (const auto& each : kKernelNumbers) {
      if (!each.is_assumed) continue;
      EXPECT_EQ(read->kernels[i].*each.value, wanted.*each.value) << each.name;
    }
    EXPECT_FALSE(whole.kernels[i].is_assumed);
    const KernelCosts& kernel = read->kernels[i];
    if (kernel.direction == Direction::forward) {
      EXPECT_DOUBLE_EQ(kernel.combine_us, 2 * kernel.tiles.front().full.compute_us);
      EXPECT_EQ(kernel.list_launch_us, 6);
    } else {
      EXPECT_EQ(kernel.correction_share, kernel.head_dim > 128 ? 0.35 : 0.5);
    }
  }
}

TEST(DeviceProfile, RejectsLimitsOutsideTheirRange) {
  const auto message = [](auto&& damage) {
    DeviceProfile profile = small_profile();
    damage(profile);
    const Result<void> valid = validate(profile);
    return valid ? std::string() : valid.error().message;
  };
  EXPECT_EQ(message([](DeviceProfile& p) { p.burst_us = 5; }),
            "burst_us, sustained_us: expected both 0, or 0 < burst_us < sustained_us, got 5 and 0");
  EXPECT_EQ(message([](DeviceProfile& p) { p.kernels[1].ahead_us = -1; }),
            "kernels[1].ahead_us: expected 0 or more microseconds up to 1000000000, got -1");
  EXPECT_EQ(message([](DeviceProfile& p) { p.kernels[0].sustained_slowdown = -0.5; }),
            "kernels[0].sustained_slowdown: expected 0 to 100, got -0.5");
  EXPECT_EQ(message([](DeviceProfile& p) { p.kernels[0].gather_slowdown = 101; }),
            "kernels[0].gather_slowdown: expected 0 to 100, got 101");
  EXPECT_THAT(message([](DeviceProfile& p) {
                p.kernels[0].sustained_slowdown = std::numeric_limits<double>::quiet_NaN();
              }),
              HasSubstr("kernels[0].sustained_slowdown"));
}

TEST(DeviceProfile, ShippedTextsAreAsCalibrateWritesThem) {
  for (const std::string_view text : {kProfileH200, kProfileH100, kProfileCpu}) {
    const Result<DeviceProfile> profile = profile_from_json(text);
    ASSERT_TRUE(profile) << profile.error().message;
    EXPECT_EQ(to_json(*profile), text);
  }
}

TEST(DeviceProfile, ShippedOnesAreValidAndSayWhatIsProvisional) {
  for (const std::string_view name : shipped_profile_names()) {
    const DeviceProfile profile = *shipped_profile(name);
    EXPECT_TRUE(validate(profile)) << name << ": " << validate(profile).error().message;
    EXPECT_EQ(profile.name, name);
    EXPECT_EQ(profile.is_provisional, name == "cpu");
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const int head_dim : {64, 128}) {
        EXPECT_TRUE(kernel_costs(profile, Direction::forward, dtype, head_dim));
        EXPECT_TRUE(kernel_costs(profile, Direction::backward, dtype, head_dim));
      }
    }
  }
  const DeviceProfile h200 = *shipped_profile("h200");
  EXPECT_EQ(h200.num_workers, 132);
  EXPECT_EQ(h200.backend, Backend::sm90);
  const KernelCosts backward = *kernel_costs(h200, Direction::backward, DType::bfloat16, 128);
  EXPECT_FALSE(backward.is_provisional);
  EXPECT_TRUE(backward.overlaps_masks);
  EXPECT_FALSE(backward.tiles.front().can_gather());
  const KernelCosts forward = *kernel_costs(h200, Direction::forward, DType::bfloat16, 128);
  EXPECT_FALSE(forward.is_provisional);
  EXPECT_TRUE(forward.overlaps_masks);
  EXPECT_NEAR(forward.tiles.front().full.compute_us, 1.345, 0.001);
}

TEST(DeviceProfile, RejectsUnknownNames) {
  const Result<DeviceProfile> profile = shipped_profile("h300");
  ASSERT_FALSE(profile);
  EXPECT_EQ(profile.error().message, "device profile: expected one of h200, h100, cpu, got 'h300'");
  EXPECT_EQ(parse_direction("sideways").error().message,
            "direction: expected forward or backward, got 'sideways'");
  EXPECT_EQ(*parse_direction("backward"), Direction::backward);
  EXPECT_EQ(*parse_attention_dtype("bf16"), DType::bfloat16);
  EXPECT_EQ(*parse_attention_dtype("float32"), DType::float32);
  EXPECT_FALSE(parse_attention_dtype("int8"));
}

TEST(KernelCosts, AreThoseOfTheHeadSizeOrBetweenItsNeighbours) {
  const DeviceProfile profile = small_profile();
  EXPECT_EQ(*kernel_costs(profile, Direction::forward, DType::float32, 64), profile.kernels[0]);
  EXPECT_EQ(*kernel_costs(profile, Direction::forward, DType::float32, 128), profile.kernels[1]);
  const KernelCosts between = *kernel_costs(profile, Direction::forward, DType::float32, 80);
  EXPECT_EQ(between.head_dim, 80);
  ASSERT_EQ(between.tiles.size(), 2U);
  EXPECT_DOUBLE_EQ(between.tiles[0].full.compute_us, 12.5);
  EXPECT_DOUBLE_EQ(between.tiles[0].columns.tile_us, 3.75);
  EXPECT_DOUBLE_EQ(between.tiles[0].item_us, 6.25);
  EXPECT_DOUBLE_EQ(between.tiles[0].far_key_us, 0.625);
  EXPECT_DOUBLE_EQ(between.launch_us, 2.5);
  EXPECT_DOUBLE_EQ(between.tiles[1].full.compute_us, 1.5);
  EXPECT_FALSE(between.tiles[1].can_gather());
}

TEST(KernelCosts, GrowWithTheHeadSizeOutsideTheProfile) {
  const DeviceProfile profile = small_profile();
  const KernelCosts large = *kernel_costs(profile, Direction::forward, DType::float32, 256);
  EXPECT_DOUBLE_EQ(large.tiles[0].full.compute_us, 40);
  EXPECT_DOUBLE_EQ(large.tiles[0].item_us, 20);
  EXPECT_DOUBLE_EQ(large.tiles[0].far_key_us, 2);
  EXPECT_DOUBLE_EQ(large.launch_us, 4);
  const KernelCosts small = *kernel_costs(profile, Direction::forward, DType::float32, 16);
  EXPECT_DOUBLE_EQ(small.tiles[0].full.compute_us, 2.5);
}

TEST(KernelCosts, RejectsWhatTheProfileLacksAndSaysWhatItHas) {
  const Result<KernelCosts> costs =
      kernel_costs(small_profile(), Direction::backward, DType::bfloat16, 64);
  ASSERT_FALSE(costs);
  EXPECT_EQ(costs.error().code, ErrorCode::unsupported);
  EXPECT_EQ(costs.error().message,
            "device profile 'test' has no costs for backward in bfloat16; it has forward float32 "
            "64, forward float32 128");
}

TEST(DeviceProfile, RejectsValuesOutsideTheirRange) {
  struct Case {
    void (*damage)(DeviceProfile&);
    const char* message;
  };
  const Case cases[] = {
      {[](DeviceProfile& p) { p.name.clear(); }, "name: expected a name"},
      {[](DeviceProfile& p) { p.num_workers = 0; }, "num_workers: expected 1 to 1048576, got 0"},
      {[](DeviceProfile& p) { p.memory_bytes_per_us = std::nan(""); }, "memory_bytes_per_us"},
      {[](DeviceProfile& p) { p.memory_bytes_per_us = 0; }, "memory_bytes_per_us"},
      {[](DeviceProfile& p) { p.stripe_rows = 24; }, "stripe_rows: expected a multiple of 16"},
      {[](DeviceProfile& p) { p.far_bytes = 1e6; }, "near_bytes, far_bytes: expected both 0, or"},
      {[](DeviceProfile& p) { p.near_bytes = 0; }, "got 0 and 15000000"},
      {[](DeviceProfile& p) { p.far_bytes = std::numeric_limits<double>::infinity(); },
       "near_bytes, far_bytes"},
      {[](DeviceProfile& p) { p.kernels[1].tiles[1].far_key_us = -1; }, "tiles[1].far_key_us"},
      {[](DeviceProfile& p) { p.kernels.clear(); }, "kernels: expected at least one"},
      {[](DeviceProfile& p) { p.kernels[1].head_dim = 64; }, "kernels[1]: forward float32 64"},
      {[](DeviceProfile& p) { p.kernels[1].head_dim = 257; }, "kernels[1].head_dim"},
      {[](DeviceProfile& p) { p.kernels[0].dtype = DType::int8; }, "kernels[0].dtype"},
      {[](DeviceProfile& p) { p.kernels[0].launch_us = -1; }, "kernels[0].launch_us"},
      {[](DeviceProfile& p) { p.kernels[0].tiles.clear(); }, "kernels[0].tiles"},
      {[](DeviceProfile& p) {
         p.kernels[0].tiles[1].tile = {128, 128};
       },
       "kernels[0].tiles[1]: 128x128 is there already"},
      {[](DeviceProfile& p) {
         p.kernels[0].tiles[1].tile = {100, 128};
       },
       "kernels[0].tiles[1].tile: expected multiples of 16"},
      {[](DeviceProfile& p) { p.kernels[0].tiles[0].full = {}; }, "kernels[0].tiles[0].full"},
      {[](DeviceProfile& p) {
         p.kernels[0].tiles[0].rows.tile_us = std::numeric_limits<double>::infinity();
       },
       "kernels[0].tiles[0].rows.tile_us: expected 0 or more microseconds up to 1000000000, got "
       "inf"},
      {[](DeviceProfile& p) { p.kernels[0].tiles[0].item_us = 1e12; }, "tiles[0].item_us"},
  };
  for (const Case& each : cases) {
    DeviceProfile profile = small_profile();
    each.damage(profile);
    const Result<void> valid = validate(profile);
    ASSERT_FALSE(valid) << each.message;
    EXPECT_EQ(valid.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(valid.error().message, HasSubstr(each.message));
  }
}

TEST(DeviceProfile, RejectsDocumentsThatAreNoProfile) {
  const std::string good = to_json(small_profile());
  const std::pair<std::string, const char*> cases[] = {
      {"", "expected a JSON document, got other text"},
      {"{", "expected a JSON document, got other text"},
      {"[]", "the document: expected an object"},
      {"{}", "fdma_device_profile: expected a whole number of 32 bits, got nothing"},
      {replaced(good, "\"fdma_device_profile\": 1", "\"fdma_device_profile\": 2"),
       "fdma_device_profile: expected version 1, got 2"},
      {replaced(good, "\"source\"", "\"sauce\""), "sauce: unknown member"},
      {replaced(good, "\"num_workers\": 3", "\"num_workers\": 3.5"),
       "num_workers: expected a whole number of 32 bits, got 3.5"},
      {replaced(good, "\"num_workers\": 3", "\"num_workers\": 99999999999999999999"),
       "num_workers: expected a whole number of 32 bits"},
      {replaced(good, "\"num_workers\": 3", "\"num_workers\": -4"), "num_workers: expected 1 to"},
      {replaced(good, "\"launch_us\": 2.0", "\"launch_us\": 1e999"),
       "expected a JSON document, got other text"},
      {replaced(good, "\"launch_us\": 2.0", "\"launch_us\": \"2\""),
       "kernels[0].launch_us: expected a number, got \"2\""},
      {replaced(good, "\"launch_us\": 2.0", "\"launch_us\": null"),
       "kernels[0].launch_us: expected a number, got null"},
      {replaced(good, "\"tile_us\": 0.25", "\"tile_us\": []"),
       "kernels[0].tiles[0].full.tile_us: expected a number, got array"},
      {replaced(good, "\"item_us\": 5.0", "\"item_us\": 5.0, \"more\": 1"),
       "kernels[0].tiles[0].more: unknown member"},
      {replaced(good, "\"float32\"", "\"float99\""), "kernels[0].dtype: dtype: expected"},
      {replaced(good, "\"forward\"", "\"up\""), "kernels[0].direction: direction: expected"},
      {replaced(good, "\"provisional\": false", "\"provisional\": 0"),
       "provisional: expected true or false, got 0"},
  };
  for (const auto& [text, message] : cases) {
    const Result<DeviceProfile> profile = profile_from_json(text);
    ASSERT_FALSE(profile) << message;
    EXPECT_THAT(profile.error().message, HasSubstr(message));
  }
}

TEST(ReadProfile, NamesThePath) {
  const std::string path = ::testing::TempDir() + "fdma_profile.json";
  std::ofstream(path) << to_json(small_profile());
  const Result<DeviceProfile> read = read_profile(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, small_profile());
  std::ofstream(path) << "{}";
  EXPECT_THAT(read_profile(path).error().message, HasSubstr(path + ": fdma_device_profile"));
  EXPECT_EQ(read_profile(path).error().code, ErrorCode::corrupt_file);
  std::ofstream(path) << std::string(std::size_t{5} << 20, ' ');
  EXPECT_EQ(read_profile(path).error().code, ErrorCode::io);
  std::remove(path.c_str());
  EXPECT_EQ(read_profile(path).error().code, ErrorCode::io);
  EXPECT_THAT(read_profile(::testing::TempDir()).error().message, HasSubstr("cannot read"));
}

}  // namespace
}  // namespace fdma
