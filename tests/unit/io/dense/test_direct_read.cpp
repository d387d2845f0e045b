// Compares reading straight from the file with reading through HDF5, which is the oracle. Element
// types, layouts, chunk shapes, filters, fill values, ranks and extents are random. The file is
// long because all of its tests share one description of a dataset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "dense/dense_elements.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "h5_edits.hpp"
#include "io/dense/slab_feed.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using testing::Element;
using testing::FileEdit;
using ::testing::HasSubstr;
using testing::kElements;
using testing::TemporaryFolder;
using testing::Type;

template <class Status>
Status must(Status status) {
  EXPECT_GE(status, 0);
  return status;
}

/// How a dataset is stored. Letters stand for filters, in their order: s shuffle, f fletcher32, z
/// deflate, n nbit (which only HDF5 reads).
struct Storage {
  std::vector<hsize_t> extents;
  std::vector<hsize_t> chunk;
  std::string filters;
  hsize_t userblock = 0;
  int fill = 0;              // of cells that are not written: whether they keep
  double written = 1;        // share of the rows of the first dimension
  bool is_allocated = true;  // contiguous: written at all
  bool is_latest = false;    // chunk indices of HDF5 1.10
};

class Dataset {
 public:
  Dataset(const std::string& path, const Storage& storage, const Element& element)
      : type_(element.make_type()), element_(element) {
    const hid_t file_creation = must(H5Pcreate(H5P_FILE_CREATE));
    must(H5Pset_userblock(file_creation, storage.userblock));
    const hid_t access = must(H5Pcreate(H5P_FILE_ACCESS));
    if (storage.is_latest) must(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110));
    file_ = must(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, file_creation, access));
    H5Pclose(file_creation);
    H5Pclose(access);
    const hid_t creation = must(H5Pcreate(H5P_DATASET_CREATE));
    if (!storage.chunk.empty()) {
      must(H5Pset_chunk(creation, static_cast<int>(storage.chunk.size()), storage.chunk.data()));
    }
    for (const char filter : storage.filters) {
      if (filter == 's') must(H5Pset_shuffle(creation));
      if (filter == 'f') must(H5Pset_fletcher32(creation));
      if (filter == 'z') must(H5Pset_deflate(creation, 4));
      if (filter == 'n') must(H5Pset_nbit(creation));
    }
    const double keeps = element.is_floating ? 0 : 1;
    const double drops = element.is_floating ? -40000 : 0;
    const double fill = storage.fill != 0 ? keeps : drops;
    if (H5Tget_class(type_) == H5T_INTEGER || element.is_floating) {
      must(H5Pset_fill_value(creation, H5T_NATIVE_DOUBLE, &fill));
    }
    // Only a dimension that may grow has chunks larger than itself.
    std::vector<hsize_t> limits = storage.extents;
    for (std::size_t d = 0; d < storage.chunk.size(); ++d) {
      if (storage.chunk[d] > limits[d]) limits[d] = H5S_UNLIMITED;
    }
    const hid_t space = must(H5Screate_simple(static_cast<int>(storage.extents.size()),
                                              storage.extents.data(), limits.data()));
    dataset_ = must(H5Dcreate2(file_, "/mask", type_, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(creation);
  }
  ~Dataset() {
    H5Dclose(dataset_);
    H5Fclose(file_);
  }
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  /// Writes the first rows of the first dimension.
  void write(const std::vector<double>& values, std::vector<hsize_t> extents, double share) {
    const auto rows = static_cast<hsize_t>(static_cast<double>(extents[0]) * share);
    if (rows == 0) return;
    std::vector<hsize_t> begin(extents.size(), 0), count = extents;
    count[0] = rows;
    const hid_t space = must(H5Dget_space(dataset_));
    const hid_t memory =
        must(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr));
    must(H5Sselect_hyperslab(space, H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr));
    const H5T_class_t type_class = H5Tget_class(type_);
    if (type_class == H5T_INTEGER || type_class == H5T_FLOAT) {
      must(H5Dwrite(dataset_, H5T_NATIVE_DOUBLE, memory, space, H5P_DEFAULT, values.data()));
    } else {
      const std::vector<std::uint8_t> bytes(values.begin(), values.end());
      must(H5Dwrite(dataset_, type_, memory, space, H5P_DEFAULT, bytes.data()));
    }
    H5Sclose(space);
    H5Sclose(memory);
  }
  hid_t id() const { return dataset_; }

 private:
  Type type_;
  const Element& element_;
  hid_t file_ = -1;
  hid_t dataset_ = -1;
};

std::vector<double> random_values(const Element& element, std::size_t count,
                                  std::mt19937_64& random) {
  const double masked[] = {-std::numeric_limits<double>::infinity(), -32752, -65504, -40000};
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count;) {
    const std::size_t run = 1 + random() % (random() % 4 == 0 ? 400 : 5);
    const bool keeps = random() % 2 != 0;
    for (std::size_t j = 0; j < run && i < count; ++j, ++i) {
      values[i] = element.is_floating ? (keeps ? (i % 3 == 0 ? -0.0 : 0.0) : masked[i % 4])
                                      : (keeps ? 1 : 0);
    }
  }
  return values;
}

bool is_read_directly(const std::string& path, const DenseReadOptions& options) {
  const io::Session session;
  const auto input = io::open_input(path);
  const auto info = io::open_dataset(input->file.get(), "/mask", "test");
  EXPECT_TRUE(info) << info.error().message;
  const auto element = io::DenseElement::of(*info, options, "test");
  auto geometry = io::DenseGeometry::of(*info, options, element->size_bytes(), "test");
  const auto feed =
      io::make_direct_feed(*input, "/mask", *info, *element, options.block, 1, "test", *geometry);
  return feed && *feed != nullptr;
}

/// Both ways give the same arrays or the same error.
void expect_same(const std::string& path, DenseReadOptions options) {
  options.reads_directly = false;
  const auto ordinary = read_dense_mask(path, "/mask", options);
  options.reads_directly = true;
  for (const int num_threads : {1, 2}) {
    options.num_threads = num_threads;
    const auto direct = read_dense_mask(path, "/mask", options);
    ASSERT_EQ(direct.has_value(), ordinary.has_value())
        << (direct ? ordinary : direct).error().message;
    if (!direct) {
      EXPECT_EQ(direct.error().code, ordinary.error().code);
      EXPECT_EQ(direct.error().message, ordinary.error().message);
      continue;
    }
    EXPECT_EQ(content_hash(*direct), content_hash(*ordinary));
    EXPECT_EQ(direct->group_of, ordinary->group_of);
  }
}

Storage random_storage(std::mt19937_64& random) {
  const auto up_to = [&](std::uint64_t n) { return 1 + random() % n; };
  Storage storage;
  const std::size_t rank = 2 + random() % 3;
  for (std::size_t d = 0; d < rank; ++d) {
    storage.extents.push_back(d + 2 < rank ? up_to(3) : up_to(random() % 3 == 0 ? 400 : 90));
  }
  if (random() % 4 != 0) {
    for (std::size_t d = 0; d < rank; ++d) {
      const bool is_plane = d + 2 < rank;
      const hsize_t side = is_plane ? up_to(2) : random() % 2 == 0 ? 64 : up_to(100);
      storage.chunk.push_back(random() % 5 == 0 ? storage.extents[d] : side);
    }
    const char* const filters[] = {"", "z", "sz", "szf", "f", "fz", "s", "fsz", "zs", "sfzf", "zf"};
    storage.filters = filters[random() % std::size(filters)];
    storage.written = random() % 3 == 0 ? 0.5 : 1;
    storage.is_latest = random() % 3 == 0;
  } else {
    storage.written = random() % 6 == 0 ? 0 : 1;
  }
  storage.userblock = random() % 3 == 0 ? 512 : 0;
  storage.fill = static_cast<int>(random() % 2);
  return storage;
}

DenseReadOptions random_options(const Storage& storage, std::mt19937_64& random) {
  DenseReadOptions options;
  options.block = random() % 2 == 0 ? BlockShape{32, 48} : BlockShape{};
  if (storage.extents.size() == 2 && random() % 5 == 0) options.dims = DenseDims::bk;
  if (storage.extents.size() == 3) {
    options.dims = random() % 2 == 0 ? DenseDims::hqk : DenseDims::bqk;
  }
  return options;
}

class DirectRead : public ::testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(EveryElement, DirectRead, ::testing::ValuesIn(kElements),
                         [](const auto& p) { return std::string(p.param.name); });

TEST_P(DirectRead, EqualsHdf5sOwnReading) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const Storage storage = random_storage(random);
    std::size_t count = 1;
    for (const hsize_t extent : storage.extents) count *= extent;
    SCOPED_TRACE(::testing::Message()
                 << "extents " << ::testing::PrintToString(storage.extents) << ", chunk "
                 << ::testing::PrintToString(storage.chunk) << ", filters '" << storage.filters
                 << "', userblock " << storage.userblock << ", written " << storage.written);
    {
      Dataset dataset(path, storage, GetParam());
      dataset.write(random_values(GetParam(), count, random), storage.extents, storage.written);
    }
    DenseReadOptions options = random_options(storage, random);
    if (!GetParam().is_floating) options.true_means_attend = random() % 4 != 0;
    EXPECT_TRUE(is_read_directly(path, options));
    expect_same(path, options);
  }
}

TEST_P(DirectRead, FindsTheSameBadCell) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 30; ++trial) {
    Storage storage = random_storage(random);
    storage.written = 1;
    std::size_t count = 1;
    for (const hsize_t extent : storage.extents) count *= extent;
    std::vector<double> values = random_values(GetParam(), count, random);
    for (int i = 0; i < 3; ++i) values[random() % count] = GetParam().is_floating ? 0.5 : 3;
    {
      Dataset dataset(path, storage, GetParam());
      dataset.write(values, storage.extents, 1);
    }
    expect_same(path, random_options(storage, random));
  }
}

// The dataset is large enough for several slabs and for parts of a row.
TEST(DirectReadOfLargeMasks, EqualsHdf5sOwnReading) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(13);
  struct Case {
    Storage storage;
    const char* element;
  };
  const Case cases[] = {{{{150, 150000}, {}, ""}, "uint8"},
                        {{{40, 40001}, {}, ""}, "int64"},
                        {{{3, 300001}, {}, ""}, "int64"},
                        {{{700, 9999}, {100, 1000}, "z"}, "boolean"},
                        {{{1500, 1000}, {1500, 64}, "szf"}, "float32"},
                        {{{600, 5000}, {256, 4096}, ""}, "uint16_big"},
                        {{{700, 5000}, {600, 4096}, ""}, "uint16_big"},
                        {{{1000, 3000}, {64, 64}, ""}, "uint8"},
                        {{{1000, 3000}, {64, 100}, "f"}, "float64"},
                        {{{6, 40, 300, 333}, {2, 3, 100, 100}, "z"}, "uint8"},
                        {{{3, 50, 200, 256}, {}, ""}, "uint8"}};
  for (const Case& c : cases) {
    const Element& element =
        *std::find_if(std::begin(kElements), std::end(kElements),
                      [&](auto& e) { return std::string(e.name) == c.element; });
    std::size_t count = 1;
    for (const hsize_t extent : c.storage.extents) count *= extent;
    {
      Dataset dataset(path, c.storage, element);
      dataset.write(random_values(element, count, random), c.storage.extents, 1);
    }
    EXPECT_TRUE(is_read_directly(path, {}));
    expect_same(path, {});
  }
}

TEST(DirectRead, LeavesWhatItCannotDoToHdf5) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(14);
  const Element& bytes = kElements[2];
  const Storage storages[] = {{{50, 60}, {25, 30}, "n"},       // another filter
                              {{50, 60}, {25, 30}, "zz"},      // sizes between are not known
                              {{50, 60}, {8192, 8192}, "z"}};  // a chunk of 64 MiB
  for (const Storage& storage : storages) {
    {
      Dataset dataset(path, storage, bytes);
      dataset.write(random_values(bytes, 50 * 60, random), storage.extents, 1);
    }
    EXPECT_FALSE(is_read_directly(path, {}));
    expect_same(path, {});
  }
  // HDF5 converts this type, which has 24 bits.
  const Element odd{"uint24",
                    [] {
                      const hid_t type = H5Tcopy(H5T_STD_U32LE);
                      H5Tset_precision(type, 24);
                      return type;
                    },
                    false};
  {
    Dataset dataset(path, {{50, 60}, {}, ""}, odd);
    dataset.write(random_values(odd, 50 * 60, random), {50, 60}, 1);
  }
  EXPECT_FALSE(is_read_directly(path, {}));
  expect_same(path, {});
}

// The chunks are written raw: with a filter mask, with a wrong size, or corrupt.
class RawChunk : public ::testing::Test {
 protected:
  void write(const std::string& filters, std::uint32_t filter_mask,
             const std::vector<std::uint8_t>& bytes) {
    Dataset dataset(path_, {{32, 64}, {32, 64}, filters}, kElements[2]);
    const hsize_t offset[2] = {0, 0};
    must(
        H5Dwrite_chunk(dataset.id(), H5P_DEFAULT, filter_mask, offset, bytes.size(), bytes.data()));
  }
  std::string error() {
    const auto mask = read_dense_mask(path_, "/mask", {});
    EXPECT_FALSE(mask);
    if (mask) return "";
    EXPECT_EQ(mask.error().code, ErrorCode::corrupt_file);
    return mask.error().message;
  }
  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("d.h5");
};

TEST_F(RawChunk, MaySkipFilters) {
  write("z", 1, std::vector<std::uint8_t>(32 * 64, 1));
  expect_same(path_, {});
  EXPECT_TRUE(read_dense_mask(path_, "/mask", {}));
}

TEST_F(RawChunk, RejectsWrongSizes) {
  write("z", 1, std::vector<std::uint8_t>(32 * 64 - 1, 1));
  EXPECT_THAT(error(), HasSubstr("cell (b 0, h 0, q 0, k 0), 2047 bytes at"));
  EXPECT_THAT(error(), HasSubstr("takes 2047 bytes, expected 2048"));
  write("z", 1, std::vector<std::uint8_t>(32 * 64 * 10, 1));
  EXPECT_THAT(error(), HasSubstr("takes 20480 bytes in the file, expected 6400 at most"));
}

TEST_F(RawChunk, RejectsWhatInflatesToAnythingElse) {
  // A deflate stream of stored blocks has 2 bytes of header, 5 bytes for each block, the data, and
  // Adler-32.
  const auto zlib = [](std::uint16_t size) {
    std::vector<std::uint8_t> bytes = {0x78, 0x01, 1};
    for (const int value : {size & 255, size >> 8, ~size & 255, (~size >> 8) & 255}) {
      bytes.push_back(static_cast<std::uint8_t>(value));
    }
    bytes.insert(bytes.end(), size, 0);
    for (const int value : {size >> 8, size & 255, 0, 1}) {
      bytes.push_back(static_cast<std::uint8_t>(value));
    }
    return bytes;
  };
  write("z", 0, zlib(2048));
  EXPECT_TRUE(read_dense_mask(path_, "/mask", {}));
  expect_same(path_, {});
  write("z", 0, zlib(2047));
  EXPECT_THAT(error(), HasSubstr("inflates to 2047 bytes, expected 2048"));
  write("z", 0, zlib(2049));
  EXPECT_THAT(error(), HasSubstr("inflates to 2049 bytes, expected 2048"));
  write("z", 0, zlib(4096));
  EXPECT_THAT(error(), HasSubstr("inflates to more than 2560 bytes, expected 2048"));
  std::vector<std::uint8_t> bytes = zlib(2048);
  bytes.back() ^= 1;
  write("z", 0, bytes);
  EXPECT_THAT(error(), HasSubstr("cannot be inflated"));
  for (std::size_t size = 0; size < 2048 + 11; size += 97) {
    bytes = zlib(2048);
    bytes.resize(std::max<std::size_t>(size, 1));
    write("z", 0, bytes);
    EXPECT_THAT(error(), HasSubstr("inflate"));
  }
}

TEST_F(RawChunk, RejectsWrongChecksums) {
  std::vector<std::uint8_t> bytes(32 * 64 + 4, 0);
  write("f", 0, bytes);
  EXPECT_TRUE(read_dense_mask(path_, "/mask", {}));
  bytes[5] = 1;
  write("f", 0, bytes);
  EXPECT_THAT(error(), HasSubstr("does not match its checksum"));
  write("f", 0, {1, 2});
  EXPECT_THAT(error(), HasSubstr("is too short for its checksum"));
}

// Chunks that follow one another in the file are read together. An error names the chunk that it is
// in.
TEST(DirectRead, NamesTheChunkThatIsCorrupt) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  constexpr int kRows = 4, kCols = 5;  // of chunks
  const auto write = [&](const std::vector<int>& corrupt) {
    Dataset dataset(path, {{32 * kRows, 64 * kCols}, {32, 64}, "f"}, kElements[2]);
    for (int i = 0; i < kRows * kCols; ++i) {
      std::vector<std::uint8_t> bytes(32 * 64 + 4, 0);  // zeros, and their checksum
      if (std::find(corrupt.begin(), corrupt.end(), i) != corrupt.end()) bytes[7] = 1;
      const hsize_t offset[2] = {static_cast<hsize_t>(i / kCols) * 32,
                                 static_cast<hsize_t>(i % kCols) * 64};
      must(H5Dwrite_chunk(dataset.id(), H5P_DEFAULT, 0, offset, bytes.size(), bytes.data()));
    }
  };
  write({});
  EXPECT_TRUE(read_dense_mask(path, "/mask", {}));
  expect_same(path, {});
  for (const int first : {0, 1, 7, 18, 19}) {
    write({19, first});
    const auto mask = read_dense_mask(path, "/mask", {});
    ASSERT_FALSE(mask);
    EXPECT_EQ(mask.error().code, ErrorCode::corrupt_file);
    EXPECT_THAT(mask.error().message,
                HasSubstr("q " + std::to_string(first / kCols * 32) + ", k " +
                          std::to_string(first % kCols * 64) + "), 2052 bytes at"));
    EXPECT_THAT(mask.error().message, HasSubstr("does not match its checksum"));
  }
}

TEST(DirectRead, NoticesAChunkedFileThatShrinks) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  {
    Dataset dataset(path, {{4000, 8192}, {100, 512}, ""}, kElements[2]);
    dataset.write(std::vector<double>(std::size_t{4000} * 8192), {4000, 8192}, 1);
  }
  DenseReadOptions options;
  options.num_threads = 1;
  bool is_cut = false;
  options.progress = [&](std::int64_t done, std::int64_t) {
    if (!is_cut) std::filesystem::resize_file(path, static_cast<std::uintmax_t>(2 * done));
    is_cut = true;
  };
  const auto mask = read_dense_mask(path, "/mask", options);
  ASSERT_FALSE(mask);
  EXPECT_EQ(mask.error().code, ErrorCode::corrupt_file);
  EXPECT_THAT(mask.error().message, HasSubstr("the chunk of cell"));
  EXPECT_THAT(mask.error().message, HasSubstr("51200 bytes at"));
  EXPECT_THAT(mask.error().message, HasSubstr("the file ends at byte"));
}

TEST(DirectRead, NoticesAFileThatShrinks) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  {
    Dataset dataset(path, {{4000, 8192}, {}, ""}, kElements[2]);
    dataset.write(std::vector<double>(std::size_t{4000} * 8192), {4000, 8192}, 1);
  }
  DenseReadOptions options;
  options.num_threads = 1;
  options.progress = [&](std::int64_t, std::int64_t) { std::filesystem::resize_file(path, 10000); };
  const auto mask = read_dense_mask(path, "/mask", options);
  ASSERT_FALSE(mask);
  EXPECT_EQ(mask.error().code, ErrorCode::corrupt_file);
  EXPECT_THAT(mask.error().message, HasSubstr("the file ends at byte"));
}

TEST(DirectRead, StopsWhenTheResultGrowsTooLarge) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(15);
  std::vector<double> values(std::size_t{1024} * 1024);
  for (double& value : values) value = static_cast<double>(random() % 2);
  {
    Dataset dataset(path, {{1024, 1024}, {128, 128}, "z"}, kElements[2]);
    dataset.write(values, {1024, 1024}, 1);
  }
  DenseReadOptions options;
  options.max_result_bytes = 60000;
  for (const bool reads_directly : {false, true}) {
    options.reads_directly = reads_directly;
    const auto mask = read_dense_mask(path, "/mask", options);
    ASSERT_FALSE(mask);
    EXPECT_EQ(mask.error().code, ErrorCode::out_of_memory);
    EXPECT_THAT(mask.error().message, HasSubstr("more than 60000 bytes of memory"));
  }
  options.max_result_bytes = 200000;
  EXPECT_TRUE(read_dense_mask(path, "/mask", options));
}

}  // namespace
}  // namespace fdma
