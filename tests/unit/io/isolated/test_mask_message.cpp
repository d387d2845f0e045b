// Tests messages between reading processes. Their contents are checked as those of files are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "io/isolated/mask_message.hpp"
#include "mask_fixtures.hpp"

namespace fdma::io {
namespace {

using ::testing::HasSubstr;

template <class T>
std::string message_of(const T& value) {
  std::string bytes;
  MessageWriter out([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return true;
  });
  write_message(out, value);
  EXPECT_TRUE(out.flush());
  return bytes;
}

template <class T>
Result<T> read_back(const std::string& bytes, Result<T> (*decode)(MessageReader&),
                    std::int64_t max_bytes = std::int64_t{1} << 30) {
  std::size_t at = 0;
  MessageReader in([&](void* data, std::size_t count) {
    if (count > bytes.size() - at) return false;
    std::memcpy(data, bytes.data() + at, count);
    at += count;
    return true;
  });
  in.begin(max_bytes);
  return decode(in);
}

TEST(MaskMessage, KeepsEveryFormat) {
  std::vector<BlockMask> masks{testing::make_pattern_mask()};
  for (const MaskFormat format : kMaskFormats) masks.push_back(testing::make_mask(format));
  for (BlockMask& mask : masks) {
    mask.origin = {1, 2, 3, 4};
    mask.is_per_head = true;
    const auto read = read_back(message_of(mask), read_mask_message);
    ASSERT_TRUE(read) << to_string(mask.format()) << ": " << read.error().message;
    EXPECT_TRUE(read->groups == mask.groups);
    EXPECT_TRUE(read->shape == mask.shape);
    EXPECT_TRUE(read->origin == mask.origin);
    EXPECT_FALSE(read->is_per_batch);
    EXPECT_TRUE(read->is_per_head);
  }
}

TEST(MaskMessage, RejectsEveryCutAndEveryFlippedLength) {
  for (const BlockMask& mask :
       {testing::make_mask(MaskFormat::segment), testing::make_mask(MaskFormat::bcsr),
        testing::make_mask(MaskFormat::columns), testing::make_pattern_mask()}) {
    const std::string bytes = message_of(mask);
    for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 16) {
      EXPECT_FALSE(read_back(bytes.substr(0, size), read_mask_message)) << size;
    }
    for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
      for (const std::int64_t value :
           {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max(), std::int64_t{1} << 40}) {
        std::string changed = bytes;
        std::memcpy(changed.data() + at, &value, sizeof value);
        const auto read = read_back(changed, read_mask_message);
        EXPECT_TRUE(read || !read.error().message.empty());
      }
    }
  }
}

TEST(MaskMessage, RejectsAnnouncedBytesThatNeverCome) {
  std::string bytes;
  MessageWriter out([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return true;
  });
  out.number(static_cast<std::uint64_t>(DType::int8));
  out.integer(1);
  for (const std::int64_t extent :
       {std::int64_t{1} << 50, std::int64_t{1}, std::int64_t{1}, std::int64_t{1}}) {
    out.integer(extent);
  }
  out.integer(std::int64_t{1} << 50);
  ASSERT_TRUE(out.flush());
  const auto table = read_back(bytes, read_table_message);
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, ErrorCode::corrupt_file);
}

TEST(MaskMessage, RejectsTablesWithOtherExtents) {
  OwnedTable table;
  table.dtype = DType::boolean;
  table.rank = 1;
  table.extents[0] = 3;
  table.bytes.resize(3);
  ASSERT_TRUE(read_back(message_of(table), read_table_message));
  table.bytes[1] = std::byte{2};
  const auto boolean = read_back(message_of(table), read_table_message);
  ASSERT_FALSE(boolean);
  EXPECT_THAT(boolean.error().message, HasSubstr("neither 0 nor 1"));
  table.bytes.resize(2);
  EXPECT_FALSE(read_back(message_of(table), read_table_message));
}

TEST(MaskMessage, GivesLargeArraysAway) {
  DenseBits bits;
  bits.q_len = 16384;
  bits.kv_len = 16384;
  bits.words.assign(static_cast<std::size_t>(bits.q_len * bits.words_per_row()), 0x5555);
  BlockMask mask;
  mask.shape.q_lens = {bits.q_len};
  mask.shape.kv_lens = {bits.kv_len};
  mask.group_of = {0};
  mask.groups = std::vector<DenseBits>{bits};
  const auto read = read_back(message_of(mask), read_mask_message);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(std::get<std::vector<DenseBits>>(read->groups)[0] == bits);
}

}  // namespace
}  // namespace fdma::io
