// Tests damaged chunk indices. HDF5 takes a chunk that it does not find for one that was never
// written, and so reads another mask from the file without an error. Every reader here refuses such
// a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "fdma/io/dense_dataset.hpp"
#include "fdma/io/interop_group.hpp"
#include "fdma/io/mask_file.hpp"
#include "fdma/io/tensor_dataset.hpp"
#include "h5_edits.hpp"
#include "io/hdf5/h5_handle.hpp"
#include "mask_fixtures.hpp"

// These functions are HDF5's own; tests call them where checksums must be right.
extern "C" std::uint32_t H5_checksum_metadata(const void* data, std::size_t bytes,
                                              std::uint32_t start);

namespace fdma {
namespace {

using testing::FileEdit;
using ::testing::HasSubstr;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr std::size_t kHeaderBytes = 24;  // of a node of a version 1 B-tree
constexpr hsize_t kSide = 96, kChunk = 32;

void store(std::string& bytes, std::size_t at, std::uint64_t value, std::size_t width = 8) {
  ASSERT_LE(at + width, bytes.size());
  std::memcpy(bytes.data() + at, &value, width);
}

std::uint64_t load(const std::string& bytes, std::size_t at, std::size_t width = 8) {
  std::uint64_t value = 0;
  EXPECT_LE(at + width, bytes.size());
  std::memcpy(&value, bytes.data() + at, width);
  return value;
}

/// A 96 x 96 dataset in chunks of 32 x 32, and the places of its index in the bytes of the file.
/// All chunks are written, each with values of its own.
class ChunkIndex : public ::testing::Test {
 protected:
  /// Letters stand for filters: z deflate, f fletcher32, s shuffle, n nbit (which only HDF5 reads).
  void make(const std::string& filters, hid_t type = H5T_STD_U8LE, bool is_latest = false,
            bool is_unlimited = false) {
    const io::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    if (is_latest) H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
    const io::Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t chunk[2] = {kChunk, kChunk}, extents[2] = {kSide, kSide};
    const hsize_t limits[2] = {H5S_UNLIMITED, H5S_UNLIMITED};
    H5Pset_chunk(creation.get(), 2, chunk);
    for (const char filter : filters) {
      if (filter == 'z') H5Pset_deflate(creation.get(), 6);
      if (filter == 'f') H5Pset_fletcher32(creation.get());
      if (filter == 's') H5Pset_shuffle(creation.get());
      if (filter == 'n') H5Pset_nbit(creation.get());
    }
    const io::Handle file(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()),
                          H5Fclose);
    const io::Handle space(H5Screate_simple(2, extents, is_unlimited ? limits : nullptr), H5Sclose);
    const io::Handle dataset(
        H5Dcreate2(file.get(), "mask", type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
        H5Dclose);
    ASSERT_GE(
        H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values().data()),
        0);
  }

  static std::vector<std::uint8_t> values() {
    std::vector<std::uint8_t> cells;
    for (hsize_t q = 0; q < kSide; ++q) {
      for (hsize_t k = 0; k < kSide; ++k) cells.push_back((q * 7 + k * 3) % 5 < 2 ? 1 : 0);
    }
    return cells;
  }

  static std::size_t tree_of(const std::string& bytes) {
    const std::size_t at = bytes.find(std::string("TREE\1", 5));
    EXPECT_NE(at, std::string::npos);
    return at;
  }
  /// Returns the place of key `index`. The key holds bytes, filter mask and three coordinates; the
  /// address of the chunk follows.
  static std::size_t key_of(const std::string& bytes, std::size_t index) {
    return tree_of(bytes) + kHeaderBytes + index * 40;
  }
  static void set_coordinates(std::string& bytes, std::size_t index, std::uint64_t q,
                              std::uint64_t k) {
    store(bytes, key_of(bytes, index) + 8, q);
    store(bytes, key_of(bytes, index) + 16, k);
  }

  void edit(const std::function<void(std::string&)>& change) {
    std::string bytes = read_bytes(path_);
    change(bytes);
    write_bytes(path_, bytes);
  }

  /// Both ways of reading a dense mask, and reading a table, fail with this text.
  void expect_refused(const std::string& text) const {
    for (const bool reads_directly : {true, false}) {
      DenseReadOptions options;
      options.reads_directly = reads_directly;
      const auto mask = read_dense_mask(path_, "/mask", options);
      ASSERT_FALSE(mask) << text;
      EXPECT_EQ(mask.error().code, ErrorCode::corrupt_file);
      EXPECT_THAT(mask.error().message, HasSubstr(text)) << reads_directly;
    }
    const auto table = read_table(path_, "/mask");
    ASSERT_FALSE(table) << text;
    EXPECT_EQ(table.error().code, ErrorCode::corrupt_file);
    EXPECT_THAT(table.error().message, HasSubstr(text));
  }
  void expect_read() const {
    for (const bool reads_directly : {true, false}) {
      DenseReadOptions options;
      options.reads_directly = reads_directly;
      const auto mask = read_dense_mask(path_, "/mask", options);
      EXPECT_TRUE(mask) << mask.error().message;
    }
    const auto table = read_table(path_, "/mask");
    ASSERT_TRUE(table) << table.error().message;
    EXPECT_EQ(std::memcmp(table->bytes.data(), values().data(), table->bytes.size()), 0);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("d.h5");
};

TEST_F(ChunkIndex, RejectsCoordinatesWhateverTheFilters) {
  for (const char* filters : {"", "z", "f", "szf", "n"}) {
    make(filters);
    expect_read();
    const std::string right = read_bytes(path_);
    const auto refuse = [&](std::size_t index, std::uint64_t q, std::uint64_t k, const char* text) {
      write_bytes(path_, right);
      edit([&](std::string& bytes) { set_coordinates(bytes, index, q, k); });
      expect_refused(text);
    };
    refuse(4, 31, 31,
           "chunk coordinates [31, 31], expected multiples of the chunk's sides [32, 32]");
    refuse(4, 33, 32, "chunk coordinates [33, 32], expected multiples");
    refuse(4, 0, 0, "chunk coordinates [0, 0] after [32, 0], expected to ascend, each once");
    refuse(4, 32, 0, "chunk coordinates [32, 0] after [32, 0], expected to ascend, each once");
    refuse(4, 32, 64, "chunk coordinates [32, 64] after [32, 64], expected to ascend");
    refuse(4, std::uint64_t{1} << 63, 32, "after [9223372036854775808, 32], expected to ascend");
    refuse(9, 64, 63, "chunk coordinates [64, 63], expected multiples");
    refuse(8, 96, 64, "chunk coordinates [64, 96] after [96, 64], expected to ascend");
    refuse(9, 64, 32, "chunk coordinates [64, 32] after [64, 64], expected to ascend");
    refuse(9, 0, 0, "chunk coordinates [0, 0] after [64, 64], expected to ascend");
  }
}

TEST_F(ChunkIndex, RejectsCoordinatesOutsideTheExtents) {
  make("z");
  const std::string right = read_bytes(path_);
  edit([](std::string& bytes) {  // the last chunk, and the bound behind it
    set_coordinates(bytes, 8, 96, 64);
    set_coordinates(bytes, 9, 96, 96);
  });
  expect_refused("chunk coordinates [96, 64], expected inside the extents [96, 96]");
  write_bytes(path_, right);
  edit([](std::string& bytes) {
    set_coordinates(bytes, 8, std::uint64_t{1} << 63, 0);
    set_coordinates(bytes, 9, std::uint64_t{1} << 63, 32);
  });
  expect_refused("chunk coordinates [9223372036854775808, 0], expected inside the extents");
  write_bytes(path_, right);
  edit([](std::string& bytes) { set_coordinates(bytes, 2, 0, 96); });
  expect_refused("chunk coordinates [0, 96], expected inside the extents [96, 96]");
}

TEST_F(ChunkIndex, RejectsTwoKeysThatAreSwapped) {
  make("");
  edit([](std::string& bytes) {
    set_coordinates(bytes, 1, 32, 0);
    set_coordinates(bytes, 3, 0, 32);
  });
  expect_refused("expected to ascend, each once");
}

TEST_F(ChunkIndex, RejectsACoordinateOfTheElement) {
  make("");
  edit([](std::string& bytes) { store(bytes, key_of(bytes, 4) + 24, 1); });
  expect_refused("chunk coordinates [32, 32] end with 1, expected 0");
}

TEST_F(ChunkIndex, RejectsAddressesThatAreTaken) {
  for (const char* filters : {"", "z", "f", "szf", "n"}) {
    make(filters);
    const std::string right = read_bytes(path_);
    edit([](std::string& bytes) {  // the bytes of another chunk
      std::memcpy(bytes.data() + key_of(bytes, 4) + 32, bytes.data() + key_of(bytes, 0) + 32, 8);
      std::memcpy(bytes.data() + key_of(bytes, 4), bytes.data() + key_of(bytes, 0), 4);
    });
    expect_refused("chunks [0, 0] and [32, 32] take the same byte");
    write_bytes(path_, right);
    edit([](std::string& bytes) { store(bytes, key_of(bytes, 8) + 32, tree_of(bytes) + 5); });
    expect_refused("chunk [64, 64] takes");
    write_bytes(path_, right);
    edit([](std::string& bytes) { store(bytes, key_of(bytes, 4) + 32, ~std::uint64_t{0}); });
    expect_refused("chunk [32, 32] would take bytes [18446744073709551615, ");
    write_bytes(path_, right);
    edit([](std::string& bytes) { store(bytes, key_of(bytes, 4) + 32, bytes.size() - 1); });
    expect_refused("chunk [32, 32] would take bytes [");
  }
}

TEST_F(ChunkIndex, RejectsSizesThatAreNotThatOfAChunk) {
  make("");
  edit([](std::string& bytes) {  // the sum is right
    store(bytes, key_of(bytes, 2), kChunk * kChunk - 1, 4);
    store(bytes, key_of(bytes, 3), kChunk * kChunk + 1, 4);
  });
  expect_refused("chunk [0, 64] takes 1023 bytes, expected 1024");
}

TEST_F(ChunkIndex, RejectsDamagedNodesOfTheTree) {
  make("");
  const std::string right = read_bytes(path_);
  edit([](std::string& bytes) { store(bytes, tree_of(bytes) + 6, 0, 2); });  // children
  EXPECT_TRUE(read_table(path_, "/mask")) << "a dataset of which nothing is stored";
  write_bytes(path_, right);
  edit([](std::string& bytes) { store(bytes, tree_of(bytes) + 5, 1, 1); });  // level
  EXPECT_FALSE(read_dense_mask(path_, "/mask", {}));
  EXPECT_FALSE(read_table(path_, "/mask"));
}

// The tree has 4,096 chunks in three levels, written in random order.
class DeepTree : public ::testing::Test {
 protected:
  static constexpr hsize_t kCells = 256, kCellChunk = 4;
  DeepTree() {
    FileEdit file = FileEdit::create(path_);
    const io::Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t chunk[2] = {kCellChunk, kCellChunk};
    H5Pset_chunk(creation.get(), 2, chunk);
    file.dataset("mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, {kCells, kCells}, nullptr, creation.get());
    const io::Handle dataset(H5Dopen2(file.id(), "mask", H5P_DEFAULT), H5Dclose);
    constexpr hsize_t kChunks = kCells / kCellChunk;
    const std::vector<std::uint8_t> ones(kCellChunk * kCellChunk, 1);
    for (hsize_t i = 0; i < kChunks * kChunks; ++i) {
      const hsize_t number = i * 1237 % (kChunks * kChunks);
      const hsize_t begin[2] = {number / kChunks * kCellChunk, number % kChunks * kCellChunk};
      EXPECT_GE(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, begin, ones.size(), ones.data()), 0);
    }
  }
  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("deep.h5");
};

TEST_F(DeepTree, IsReadAsItIs) {
  const auto table = read_table(path_, "/mask");
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(std::accumulate(table->bytes.begin(), table->bytes.end(), std::int64_t{0},
                            [](std::int64_t sum, std::byte value) {
                              return sum + std::to_integer<int>(value);
                            }),
            kCells * kCells);
}

TEST_F(DeepTree, RejectsBoundsThatHideChunks) {
  const std::string right = read_bytes(path_);
  int num_damaged = 0;
  for (std::size_t at = right.find("TREE\1"); at != std::string::npos;
       at = right.find("TREE\1", at + 1)) {
    if (right[at + 5] == 0) continue;  // leaves
    std::string bytes = right;
    const std::size_t key = at + kHeaderBytes + 40 + 8;  // the second key's row
    store(bytes, key, load(bytes, key) + kCellChunk);
    write_bytes(path_, bytes);
    const auto mask = read_dense_mask(path_, "/mask", {});
    ASSERT_FALSE(mask);
    EXPECT_THAT(mask.error().message, HasSubstr("expected to ascend, each once"));
    const auto table = read_table(path_, "/mask");
    ASSERT_FALSE(table);
    EXPECT_THAT(table.error().message, HasSubstr("expected to ascend, each once"));
    ++num_damaged;
  }
  EXPECT_GE(num_damaged, 2);
}

// Datasets that may grow in two dimensions have a version 2 B-tree. It checks its bytes, but not
// their meaning.
TEST_F(ChunkIndex, RejectsRecordsThatNoLookUpFinds) {
  make("", H5T_STD_U8LE, true, true);
  expect_read();
  const std::string right = read_bytes(path_);
  const std::size_t leaf = right.find("BTLF");
  ASSERT_NE(leaf, std::string::npos);
  constexpr std::size_t kRecord = 24, kRecords = 9;  // address, two coordinates in chunks
  const auto refuse = [&](std::size_t index, std::uint64_t q, std::uint64_t k) {
    std::string bytes = right;
    const std::size_t begin = leaf + 6;
    store(bytes, begin + index * kRecord + 8, q);
    store(bytes, begin + index * kRecord + 16, k);
    const std::size_t size = 6 + kRecords * kRecord;
    store(bytes, leaf + size, H5_checksum_metadata(bytes.data() + leaf, size, 0), 4);
    write_bytes(path_, bytes);
    expect_refused("that are stored");
  };
  refuse(4, 0, 0);
  refuse(4, 1, 0);
  refuse(4, std::uint64_t{1} << 40, 1);
  refuse(8, 3, 2);
}

TEST_F(ChunkIndex, KeepsWhatResizingLeaves) {
  for (const bool is_latest : {false, true}) {
    for (const hsize_t side : {33u, 64u, 95u, 200u}) {
      make("z", H5T_STD_U8LE, is_latest, true);
      {
        FileEdit file(path_);
        const io::Handle dataset(H5Dopen2(file.id(), "mask", H5P_DEFAULT), H5Dclose);
        const hsize_t smaller[2] = {side, 40}, larger[2] = {side, 130};
        ASSERT_GE(H5Dset_extent(dataset.get(), smaller), 0);
        ASSERT_GE(H5Dset_extent(dataset.get(), larger), 0);
      }
      const auto mask = read_dense_mask(path_, "/mask", {});
      EXPECT_TRUE(mask) << mask.error().message;
      const auto table = read_table(path_, "/mask");
      ASSERT_TRUE(table) << table.error().message;
      EXPECT_EQ(table->bytes[39], std::byte{values()[39]});
      EXPECT_EQ(table->bytes[40], std::byte{0});
    }
  }
}

// HDF5 takes as many bytes as a chunk has, whatever size it inflates to.
TEST_F(ChunkIndex, RejectsWhatInflatesToLessThroughTheLibrary) {
  const std::vector<std::uint8_t> short_chunk = {
      0x78, 0x01, 1, 4, 0, 0xfb, 0xff, 1, 1, 1, 1, 0x00, 0x0e, 0x00, 0x05};  // 4 bytes of 1
  make("z");
  {
    FileEdit file(path_);
    const io::Handle dataset(H5Dopen2(file.id(), "mask", H5P_DEFAULT), H5Dclose);
    const hsize_t begin[2] = {32, 64};
    ASSERT_GE(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, begin, short_chunk.size(),
                             short_chunk.data()),
              0);
  }
  const auto table = read_table(path_, "/mask");
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, ErrorCode::corrupt_file);
  EXPECT_THAT(table.error().message,
              HasSubstr("chunk [32, 64] inflates to 4 bytes, expected 1024"));
  DenseReadOptions options;
  options.reads_directly = false;
  const auto mask = read_dense_mask(path_, "/mask", options);
  ASSERT_FALSE(mask);
  EXPECT_THAT(mask.error().message, HasSubstr("inflates to 4 bytes, expected 1024"));
}

TEST_F(ChunkIndex, IsCheckedForTensors) {
  make("", H5T_IEEE_F32LE);
  const auto spec = describe_tensor(path_, "/mask");
  ASSERT_TRUE(spec) << spec.error().message;
  const auto right = read_tensor(path_, "/mask", *spec);
  ASSERT_TRUE(right) << right.error().message;
  edit([](std::string& bytes) { set_coordinates(bytes, 4, 0, 0); });
  const auto tensor = read_tensor(path_, "/mask", *spec);
  ASSERT_FALSE(tensor);
  EXPECT_EQ(tensor.error().code, ErrorCode::corrupt_file);
  EXPECT_THAT(tensor.error().message, HasSubstr("chunk coordinates [0, 0] after [32, 0]"));
}

TEST_F(ChunkIndex, IsCheckedForFieldsOfInteropGroups) {
  make("z", H5T_STD_I32LE);
  {
    FileEdit file(path_);
    file.group("g");
    file.move("mask", "g/values");
  }
  ASSERT_TRUE(read_interop_group(path_, "/g"));
  edit([](std::string& bytes) { set_coordinates(bytes, 4, 31, 31); });
  const auto group = read_interop_group(path_, "/g");
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code, ErrorCode::corrupt_file);
  EXPECT_THAT(group.error().message, HasSubstr("chunk coordinates [31, 31], expected multiples"));
}

// Arrays of mask files are read whole. Their hashes would show a damage, but not its place.
TEST_F(ChunkIndex, IsCheckedForArraysOfMaskFiles) {
  BlockMask large;
  large.shape.q_lens = {900};
  large.shape.kv_lens = {1000};
  large.group_of = {0};
  large.groups = std::vector<DenseBits>{testing::dense_of(testing::make_cells(
      900, 1000, [](std::int64_t q, std::int64_t k) { return (q * 7 + k * k) % 5 < 2; }))};
  ASSERT_TRUE(write_masks(path_, {{"m", large}}));
  ASSERT_TRUE(read_mask(path_));
  const std::string right = read_bytes(path_);
  const std::size_t num_chunks = load(right, tree_of(right) + 6, 2);
  edit([&](std::string& bytes) { store(bytes, tree_of(bytes) + 6, num_chunks - 1, 2); });
  const auto gap = read_mask(path_);
  ASSERT_FALSE(gap);
  EXPECT_EQ(gap.error().code, ErrorCode::corrupt_file);
  write_bytes(path_, right);
  edit([](std::string& bytes) { store(bytes, tree_of(bytes) + kHeaderBytes + 8, 1); });
  const auto moved = read_mask(path_);
  ASSERT_FALSE(moved);
  EXPECT_THAT(moved.error().message, HasSubstr("chunk coordinates ["));
}

}  // namespace
}  // namespace fdma
