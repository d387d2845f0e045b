// Tests headers and chunks that HDF5 1.10 does not check and later versions refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "fdma/io/dense_dataset.hpp"
#include "io/hdf5/h5_handle.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr hsize_t kSide = 96;

/// A 96 x 96 dataset of bytes 0 and 1. It is contiguous, or it has one filter and one chunk.
class DamagedHeader : public ::testing::Test {
 protected:
  void make(H5Z_filter_t filter = H5Z_FILTER_NONE) {
    const hsize_t extents[2] = {kSide, kSide};
    const io::Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (filter != H5Z_FILTER_NONE) H5Pset_chunk(creation.get(), 2, extents);
    if (filter == H5Z_FILTER_SCALEOFFSET) H5Pset_scaleoffset(creation.get(), H5Z_SO_INT, 0);
    if (filter == H5Z_FILTER_SZIP) H5Pset_szip(creation.get(), H5_SZIP_NN_OPTION_MASK, 8);
    const io::Handle file(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
                          H5Fclose);
    const io::Handle space(H5Screate_simple(2, extents, nullptr), H5Sclose);
    const io::Handle dataset(H5Dcreate2(file.get(), "mask", H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                                        creation.get(), H5P_DEFAULT),
                             H5Dclose);
    std::vector<std::uint8_t> values(kSide * kSide, 0);
    for (std::size_t i = 0; i < values.size(); i += 3) values[i] = 1;
    ASSERT_GE(
        H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  }

  /// Overwrites the bytes that lie `distance` bytes behind the only place of `pattern`.
  void edit(const std::string& pattern, std::size_t distance, const std::string& value) {
    std::string bytes = read_bytes(path_);
    const std::size_t at = bytes.find(pattern);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(bytes.find(pattern, at + 1), std::string::npos);
    bytes.replace(at + distance, value.size(), value);
    write_bytes(path_, bytes);
  }

  /// Overwrites the first bytes of the only chunk. The address of the chunk lies behind its key.
  void edit_chunk(const std::string& value) {
    std::string bytes = read_bytes(path_);
    const std::size_t tree = bytes.find(std::string("TREE\1", 5));
    ASSERT_NE(tree, std::string::npos);
    std::uint64_t address = 0;
    std::memcpy(&address, bytes.data() + tree + 24 + 32, sizeof address);
    bytes.replace(address, value.size(), value);
    write_bytes(path_, bytes);
  }

  static std::string number(std::uint64_t value, std::size_t width = 8) {
    return std::string(reinterpret_cast<const char*>(&value), width);
  }

  void expect_refused(const char* text) const {
    const auto mask = read_dense_mask(path_, "/mask", {});
    ASSERT_FALSE(mask) << text;
    EXPECT_EQ(mask.error().code, ErrorCode::corrupt_file);
    EXPECT_THAT(mask.error().message, HasSubstr(text));
    const auto table = read_table(path_, "/mask");
    ASSERT_FALSE(table) << text;
    EXPECT_THAT(table.error().message, HasSubstr(text));
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("d.h5");
};

TEST_F(DamagedHeader, RejectsExtentsBeyondTheirLimits) {
  make();
  const std::string extents = number(kSide) + number(kSide) + number(kSide) + number(kSide);
  edit(extents, 8, number(kSide + 1));
  expect_refused("extent 97 of dimension 1, expected at most 96");
}

TEST_F(DamagedHeader, RejectsBitsOutsideAnElement) {
  const std::string type("\x10\0\0\0\1\0\0\0\0\0\x08\0", 12);  // class, size, offset, precision
  make();
  edit(type, 10, number(0, 2));
  expect_refused("0 bits from bit 0 on, expected them inside the 8 of an element");
  make();
  edit(type, 8, number(1, 2));
  expect_refused("8 bits from bit 1 on, expected them inside the 8 of an element");
}

TEST_F(DamagedHeader, RejectsContiguousValuesOfAnotherSize) {
  make();
  edit(number(kSide * kSide), 0, number(kSide * kSide + 1));
  expect_refused("its values take 9217 bytes, expected 9216 of 1 bytes each");
}

TEST_F(DamagedHeader, RejectsValuesBehindTheEndOfTheFilesStructures) {
  make();
  const std::string whole = read_bytes(path_);
  edit(number(whole.size()), 0, number(whole.size() - 8));  // in the superblock
  expect_refused("but the file's structures end at");
}

TEST_F(DamagedHeader, RejectsWhatScaleoffsetSaysOfItself) {
  make(H5Z_FILTER_SCALEOFFSET);
  ASSERT_TRUE(read_dense_mask(path_, "/mask", {}));
  edit_chunk(number(0, 4));
  expect_refused("has values of 0 bits in ");
  make(H5Z_FILTER_SCALEOFFSET);
  edit_chunk(number(264, 4));
  expect_refused("has values of 264 bits in ");
}

TEST_F(DamagedHeader, RejectsWhatSzipSaysOfItself) {
  unsigned config = 0;
  if (H5Zfilter_avail(H5Z_FILTER_SZIP) <= 0 || H5Zget_filter_info(H5Z_FILTER_SZIP, &config) < 0 ||
      (config & H5Z_FILTER_CONFIG_ENCODE_ENABLED) == 0) {
    GTEST_SKIP() << "this HDF5 does not write szip";
  }
  make(H5Z_FILTER_SZIP);
  ASSERT_TRUE(read_dense_mask(path_, "/mask", {}));
  edit(number(kSide * kSide, 4), 0, number(kSide, 4));
  expect_refused("decodes to 96 bytes (szip), expected 9216");
}

}  // namespace
}  // namespace fdma
