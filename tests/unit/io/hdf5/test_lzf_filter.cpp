// Tests the decoder of h5py's LZF filter on its own streams and on broken ones.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/hdf5/lzf_filter.hpp"

namespace fdma::io {
namespace {

// The decoded text, or "-" for an error.
std::string decoded(const std::vector<int>& stored, std::int64_t capacity) {
  std::vector<std::byte> bytes;
  for (const int byte : stored) bytes.push_back(static_cast<std::byte>(byte));
  std::string out(static_cast<std::size_t>(capacity), '?');
  const std::int64_t made = decode_lzf(bytes.data(), static_cast<std::int64_t>(bytes.size()),
                                       reinterpret_cast<std::byte*>(out.data()), capacity);
  return made < 0 ? "-" : out.substr(0, static_cast<std::size_t>(made));
}

TEST(LzfFilter, CopiesAndRepeats) {
  EXPECT_EQ(decoded({2, 'a', 'b', 'c'}, 3), "abc");
  EXPECT_EQ(decoded({0, 'a', 0x20, 0}, 4), "aaaa");                    // one back, three times
  EXPECT_EQ(decoded({1, 'a', 'b', 0x40, 1}, 6), "ababab");             // two back, four times
  EXPECT_EQ(decoded({0, 'x', 0xe0, 0, 0}, 10), std::string(10, 'x'));  // a long repetition
  EXPECT_EQ(decoded({}, 0), "");
}

TEST(LzfFilter, RejectsBrokenStreams) {
  EXPECT_EQ(decoded({2, 'a', 'b'}, 3), "-");      // the copy is cut off
  EXPECT_EQ(decoded({0x20}, 8), "-");             // no distance
  EXPECT_EQ(decoded({0xe0}, 8), "-");             // no length
  EXPECT_EQ(decoded({0xe0, 5}, 8), "-");          // no distance after a length
  EXPECT_EQ(decoded({0x20, 0}, 8), "-");          // a repetition of nothing
  EXPECT_EQ(decoded({0, 'a', 0x20, 1}, 8), "-");  // farther back than the begin
  EXPECT_EQ(decoded({0, 'a', 0x20, 0}, 3), "-");  // more than there is room for
  EXPECT_EQ(decoded({2, 'a', 'b', 'c'}, 2), "-");
}

}  // namespace
}  // namespace fdma::io
