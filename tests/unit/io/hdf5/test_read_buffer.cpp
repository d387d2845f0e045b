#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/read_buffer.hpp"

namespace fdma::io {
namespace {

/// A file with byte i = i * 7 modulo 251.
class ReadBufferTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kFileBytes = 5 << 20;

  void SetUp() override {
    std::string name = ::testing::TempDir() + "/read_buffer_XXXXXX";
    descriptor_ = mkstemp(name.data());
    ASSERT_GE(descriptor_, 0);
    unlink(name.c_str());
    std::vector<unsigned char> bytes(kFileBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = expected(static_cast<std::int64_t>(i));
    ASSERT_EQ(write(descriptor_, bytes.data(), bytes.size()), kFileBytes);
  }
  void TearDown() override { close(descriptor_); }

  static unsigned char expected(std::int64_t address) {
    return static_cast<unsigned char>(address * 7 % 251);
  }

  void expect_read(ReadBuffer& buffer, std::int64_t address, std::int64_t size) {
    SCOPED_TRACE(::testing::Message() << "address " << address << ", size " << size);
    const Result<std::byte*> bytes = buffer.read(descriptor_, address, size);
    ASSERT_TRUE(bytes) << bytes.error().message;
    place_ = *bytes;
    const auto place = reinterpret_cast<std::uintptr_t>(*bytes);
    EXPECT_EQ(place % 64, 0U);
    // The place is half a page from the place in the file, to within a cache line.
    const std::uintptr_t line = static_cast<std::uintptr_t>(address) / 64 * 64;
    EXPECT_EQ((place - line) % 4096, 2048U);
    for (std::int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(std::to_integer<unsigned char>((*bytes)[i]), expected(address + i)) << i;
    }
    for (std::int64_t i = 0; i < ReadBuffer::kPadding; ++i) {
      ASSERT_EQ(std::to_integer<int>((*bytes)[size + i]), 0) << i;
    }
  }

  int descriptor_ = -1;
  const std::byte* place_ = nullptr;  ///< of the last read
};

TEST_F(ReadBufferTest, ReadsAnySizeAnywhere) {
  ReadBuffer buffer;
  const std::int64_t at_once = ReadBuffer::bytes_at_once();
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{63}, std::int64_t{4096}, std::int64_t{262148}, at_once - 1,
        at_once, at_once + 4095, 2 * at_once}) {
    for (const std::int64_t address : {0, 1, 63, 64, 2047, 2048, 2112, 4016, 4095, 4096, 70001}) {
      expect_read(buffer, address, std::min(size, kFileBytes - address));
    }
  }
}

TEST_F(ReadBufferTest, GoesRoundItsMemory) {
  ReadBuffer buffer;
  const std::int64_t size = 262144;
  std::vector<const std::byte*> places;
  for (std::int64_t i = 0; i < 16; ++i) {
    expect_read(buffer, 2048 + i * size, size);
    places.push_back(place_);
  }
  const auto [least, most] = std::minmax_element(places.begin(), places.end());
  EXPECT_LE(*most + size - *least, ReadBuffer::max_bytes(size));
  const bool has_room = ReadBuffer::bytes_at_once() >= 2 * size;
  EXPECT_EQ(*least != *most, has_room);
}

TEST_F(ReadBufferTest, RejectsTheEndOfTheFile) {
  ReadBuffer buffer;
  const Result<std::byte*> bytes = buffer.read(descriptor_, kFileBytes - 10, 11);
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, ErrorCode::corrupt_file);
  expect_read(buffer, kFileBytes - 10, 10);  // and can be used again
}

TEST(ReadBufferSize, IsThatOfACache) {
  EXPECT_GE(ReadBuffer::bytes_at_once(), 256 << 10);
  EXPECT_LE(ReadBuffer::bytes_at_once(), 2 << 20);
  EXPECT_EQ(ReadBuffer::bytes_at_once() % 4096, 0);
}

}  // namespace
}  // namespace fdma::io
