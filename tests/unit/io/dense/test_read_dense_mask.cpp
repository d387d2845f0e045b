// Compares dense masks of every kind with a naive reader. The file is long because all of its tests
// share one table of kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "dense/dense_elements.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "h5_edits.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::DatasetSpec;
using testing::Element;
using testing::FileEdit;
using ::testing::HasSubstr;
using testing::kElements;
using testing::TemporaryFolder;
using testing::Type;
using testing::write_dataset;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns random cells of which some tiles are empty and some full.
std::vector<bool> random_cells(std::size_t count, std::mt19937_64& random) {
  std::vector<bool> cells(count);
  for (std::size_t i = 0; i < count;) {
    const std::size_t run = 1 + random() % (random() % 4 == 0 ? 400 : 5);
    const bool value = random() % 2 != 0;
    for (std::size_t j = 0; j < run && i < count; ++j) cells[i++] = value;
  }
  return cells;
}

void expect_cells(const BlockMask& mask, const std::vector<bool>& cells) {
  const std::int64_t q_len = mask.shape.q_lens[0], kv_len = mask.shape.kv_lens[0];
  ASSERT_EQ(static_cast<std::int64_t>(cells.size()),
            mask.shape.num_batches * mask.shape.num_heads * q_len * kv_len);
  const auto& groups = std::get<std::vector<SegmentMask>>(mask.groups);
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < mask.shape.num_heads; ++h) {
      const std::int64_t plane = b * mask.shape.num_heads + h;
      const auto first = cells.begin() + plane * q_len * kv_len;
      const Cells expected{q_len, kv_len, std::vector<bool>(first, first + q_len * kv_len)};
      const SegmentMask& group = groups[static_cast<std::size_t>(mask.group(b, h))];
      ASSERT_TRUE(testing::cells_of(group) == expected) << "plane " << plane;
      ASSERT_TRUE(group == testing::segment_of(expected, mask.block)) << "not canonical";
    }
  }
}

std::string error_of(const std::string& path, const DenseReadOptions& options, ErrorCode code,
                     const std::string& dataset = "/mask") {
  const auto read = read_dense_mask(path, dataset, options);
  EXPECT_FALSE(read);
  if (read) return "";
  EXPECT_EQ(read.error().code, code) << read.error().message;
  return read.error().message;
}

class EveryKind : public ::testing::TestWithParam<Element> {
 protected:
  // Writes cells as /mask: as 0 and 1, or as 0 and various values that mask.
  void write(const std::string& path, const std::vector<bool>& cells, const DatasetSpec& spec) {
    const Type type(GetParam().make_type());
    FileEdit file = FileEdit::create(path);
    if (!GetParam().is_floating) {
      const std::vector<std::uint8_t> bytes(cells.begin(), cells.end());
      const bool is_number = H5Tget_class(type) == H5T_INTEGER;
      write_dataset(file, "/mask", spec, type,
                    is_number ? H5T_NATIVE_UINT8 : static_cast<hid_t>(type), bytes.data());
      return;
    }
    const double masked[] = {-kInfinity, -32752, -65504, -40000};
    std::vector<double> values;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      values.push_back(cells[i] ? (i % 3 == 0 ? -0.0 : 0.0) : masked[i % 4]);
    }
    write_dataset(file, "/mask", spec, type, H5T_NATIVE_DOUBLE, values.data());
  }
};
INSTANTIATE_TEST_SUITE_P(ReadDenseMask, EveryKind, ::testing::ValuesIn(kElements),
                         [](const auto& p) { return std::string(p.param.name); });

TEST_P(EveryKind, MatchesTheCells) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(3);
  const DatasetSpec specs[] = {{{131, 197}, {}},
                               {{131, 197}, {40, 50}},
                               {{2, 3, 67, 130}, {1, 2, 30, 64}, true},
                               {{1, 1}, {}},
                               {{300, 64}, {300, 1}, true}};
  for (const DatasetSpec& spec : specs) {
    std::size_t count = 1;
    for (const hsize_t extent : spec.extents) count *= extent;
    const std::vector<bool> cells = random_cells(count, random);
    write(path, cells, spec);
    for (const int num_threads : {1, 4}) {
      DenseReadOptions options;
      options.block = {32, 48};
      options.num_threads = num_threads;
      const auto mask = read_dense_mask(path, "/mask", options);
      ASSERT_TRUE(mask) << mask.error().message;
      expect_cells(*mask, cells);
    }
  }
}

TEST_P(EveryKind, TrueMayMeanMasked) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(4);
  std::vector<bool> cells = random_cells(100 * 70, random);
  write(path, cells, {{100, 70}, {}});
  DenseReadOptions options;
  options.true_means_attend = false;
  if (GetParam().is_floating) {
    EXPECT_THAT(error_of(path, options, ErrorCode::invalid_argument), HasSubstr("--true-means"));
    return;
  }
  cells.flip();
  const auto mask = read_dense_mask(path, "mask", options);
  ASSERT_TRUE(mask) << mask.error().message;
  expect_cells(*mask, cells);
}

TEST_P(EveryKind, NamesTheFirstBadCell) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  const Type type(GetParam().make_type());
  std::vector<double> values(2 * 3 * 50 * 60);
  const auto index = [](int b, int h, int q, int k) {
    return static_cast<std::size_t>(((b * 3 + h) * 50 + q) * 60 + k);
  };
  const double bad = GetParam().is_floating ? 0.5 : 3;
  values[index(0, 1, 41, 3)] = bad;  // the first in order, though others are read before it
  values[index(0, 1, 41, 50)] = bad;
  values[index(0, 2, 0, 0)] = bad;
  values[index(1, 0, 0, 0)] = bad;
  const std::vector<std::uint8_t> bytes(values.begin(), values.end());
  const bool is_number = GetParam().is_floating || H5Tget_class(type) == H5T_INTEGER;
  for (const std::vector<hsize_t>& chunk :
       {std::vector<hsize_t>{}, {2, 3, 50, 7}, {1, 1, 8, 8}, {2, 2, 9, 60}}) {
    {
      FileEdit file = FileEdit::create(path);
      write_dataset(file, "/mask", {{2, 3, 50, 60}, chunk}, type,
                    is_number ? H5T_NATIVE_DOUBLE : static_cast<hid_t>(type),
                    is_number ? static_cast<const void*>(values.data()) : bytes.data());
    }
    const std::string message = error_of(path, {}, ErrorCode::invalid_argument);
    EXPECT_THAT(message, HasSubstr("/mask': cell (b 0, h 1, q 41, k 3) is " +
                                   std::string(GetParam().is_floating ? "0.5" : "3") + ";"));
  }
}

TEST(ReadDenseMask, ReadsBfloat16MarkedByItsAttribute) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(5);
  const std::vector<bool> cells = random_cells(90 * 80, random);
  for (const hid_t file_type : {H5T_STD_U16LE, H5T_STD_U16BE}) {
    for (const bool is_variable : {false, true}) {
      std::vector<std::uint16_t> values;
      const std::uint16_t masked[] = {0xff80, 0xc700, 0xff7f};  // -inf, -32768, lowest
      for (std::size_t i = 0; i < cells.size(); ++i) {
        values.push_back(cells[i] ? (i % 2 == 0 ? 0x8000 : 0) : masked[i % 3]);
      }
      {
        FileEdit file = FileEdit::create(path);
        write_dataset(file, "/mask", {{90, 80}, {}}, file_type, H5T_NATIVE_UINT16, values.data());
        file.attribute("/mask", "dtype", "bfloat16", is_variable);
      }
      const auto mask = read_dense_mask(path, "/mask", {});
      ASSERT_TRUE(mask) << mask.error().message;
      expect_cells(*mask, cells);
      values[81] = 0xc61c;  // -9984
      {
        FileEdit file = FileEdit::create(path);
        write_dataset(file, "/mask", {{90, 80}, {}}, file_type, H5T_NATIVE_UINT16, values.data());
        file.attribute("/mask", "dtype", "bfloat16", is_variable);
      }
      EXPECT_THAT(error_of(path, {}, ErrorCode::invalid_argument),
                  HasSubstr("cell (b 0, h 0, q 1, k 1) is -9984"));
    }
  }
}

TEST(ReadDenseMask, DropBelowIsInclusiveInEveryPrecision) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  // float16 cannot represent -2049, and no type here represents -0.1.
  for (const double drop_below : {-1e4, -2049.0, -0.1, -1.0, -70000.0, -kInfinity}) {
    for (int kind = 0; kind < 3; ++kind) {
      const Type type(kind == 0   ? testing::make_half_type(H5T_ORDER_LE)
                      : kind == 1 ? H5Tcopy(H5T_IEEE_F32LE)
                                  : H5Tcopy(H5T_IEEE_F64LE));
      for (const double value : {-0.05, -0.1, -0.2, -1.0, -2048.0, -2049.0, -2050.0, -10000.0,
                                 -10008.0, -65504.0, -kInfinity}) {
        if (kind == 0 && value == -2049.0) continue;  // how HDF5 rounds it is its own affair
        {
          FileEdit file = FileEdit::create(path);
          write_dataset(file, "/mask", {{1, 1}, {}}, type, H5T_NATIVE_DOUBLE, &value);
        }
        double stored = value;  // what the precision makes of it
        if (kind == 1) stored = static_cast<double>(static_cast<float>(value));
        if (kind == 0 && value == -0.05) stored = -0.04998779296875;
        if (kind == 0 && value == -0.1) stored = -0.0999755859375;
        if (kind == 0 && value == -0.2) stored = -0.199951171875;
        DenseReadOptions options;
        options.drop_below = drop_below;
        EXPECT_EQ(read_dense_mask(path, "/mask", options).has_value(), stored <= drop_below)
            << value << " against " << drop_below << " kind " << kind;
      }
    }
  }
}

TEST(ReadDenseMask, SuggestsTheOptionForFloatingValues) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  const auto message_for = [&](float value) {
    {
      FileEdit file = FileEdit::create(path);
      const float values[] = {0, -std::numeric_limits<float>::infinity(), value, 0};
      write_dataset(file, "/mask", {{2, 2}, {}}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values);
    }
    return error_of(path, {}, ErrorCode::invalid_argument);
  };
  EXPECT_THAT(message_for(-10000), HasSubstr("(b 0, h 0, q 1, k 0) is -10000"));
  EXPECT_THAT(message_for(-10000), HasSubstr("pass --drop-below -10000 if it means masked"));
  EXPECT_THAT(message_for(1), HasSubstr("pass --ones-keep if 1 keeps and 0 masks"));
  EXPECT_THAT(message_for(0.25), HasSubstr("a bias is not a mask"));
  EXPECT_THAT(message_for(std::nanf("")), HasSubstr("is nan"));
  EXPECT_THAT(message_for(std::numeric_limits<float>::infinity()), HasSubstr("is inf"));
}

TEST(ReadDenseMask, NeedsTheMeaningOfThreeDimensions) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(6);
  const std::vector<bool> cells = random_cells(5 * 40 * 30, random);
  const std::vector<std::uint8_t> bytes(cells.begin(), cells.end());
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/mask", {{5, 40, 30}, {3, 16, 16}}, H5T_STD_U8LE, H5T_NATIVE_UINT8,
                  bytes.data());
    write_dataset(file, "/five", {{1, 1, 1, 1, 1}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8,
                  bytes.data());
    write_dataset(file, "/one", {{5}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8, bytes.data());
  }
  EXPECT_THAT(error_of(path, {}, ErrorCode::shape_mismatch),
              HasSubstr("3 dimensions [5, 40, 30]: say --dims hqk or --dims bqk"));
  DenseReadOptions options;
  options.dims = DenseDims::hqk;
  auto mask = read_dense_mask(path, "/mask", options);
  ASSERT_TRUE(mask) << mask.error().message;
  EXPECT_EQ(mask->shape, (MaskShape{1, 5, {40}, {30}}));
  expect_cells(*mask, cells);
  options.dims = DenseDims::bqk;
  mask = read_dense_mask(path, "/mask", options);
  ASSERT_TRUE(mask) << mask.error().message;
  EXPECT_EQ(mask->shape, (MaskShape{5, 1, {40}, {30}}));
  expect_cells(*mask, cells);
  for (const DenseDims dims : {DenseDims::qk, DenseDims::bhqk}) {
    options.dims = dims;
    EXPECT_THAT(error_of(path, options, ErrorCode::shape_mismatch), HasSubstr("3 dimensions, but"));
  }
  options.dims = DenseDims::bk;  // [batch, 1, keys] at most
  EXPECT_THAT(error_of(path, options, ErrorCode::shape_mismatch),
              HasSubstr("extents [5, 40, 30]: dims (--dims) bk is [batch, keys]"));
  EXPECT_THAT(error_of(path, {}, ErrorCode::shape_mismatch, "/five"), HasSubstr("5 dimensions"));
  EXPECT_THAT(error_of(path, {}, ErrorCode::shape_mismatch, "/one"), HasSubstr("1 dimensions"));
}

TEST(ReadDenseMask, SharesPaddingRowsAmongQueries) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  const std::int64_t kKv = 333, kQ = 77;
  std::vector<std::uint8_t> bytes;
  std::mt19937_64 random(7);
  const std::vector<bool> noise = random_cells(static_cast<std::size_t>(kKv), random);
  for (int b = 0; b < 4; ++b) {
    for (std::int64_t k = 0; k < kKv; ++k) {
      const bool values[] = {k < 200, k >= 100, noise[static_cast<std::size_t>(k)], k < 200};
      bytes.push_back(values[b]);
    }
  }
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/mask", {{4, static_cast<hsize_t>(kKv)}, {}}, H5T_STD_U8LE,
                  H5T_NATIVE_UINT8, bytes.data());
  }
  DenseReadOptions options;
  options.dims = DenseDims::bk;
  for (const std::int64_t q_len : {kQ, std::int64_t{0}}) {
    options.q_len = q_len;
    const auto mask = read_dense_mask(path, "/mask", options);
    ASSERT_TRUE(mask) << mask.error().message;
    EXPECT_EQ(mask->shape.q_lens[0], q_len == 0 ? kKv : kQ);
    EXPECT_EQ(mask->group_of, (std::vector<std::int32_t>{0, 1, 2, 0}));
    std::vector<bool> cells;
    for (int b = 0; b < 4; ++b) {
      for (std::int64_t q = 0; q < mask->shape.q_lens[0]; ++q) {
        cells.insert(cells.end(), bytes.begin() + b * kKv, bytes.begin() + (b + 1) * kKv);
      }
    }
    expect_cells(*mask, cells);
  }
  options.dims = DenseDims::qk;
  options.q_len = 5;
  EXPECT_THAT(error_of(path, options, ErrorCode::invalid_argument), HasSubstr("q_len"));
}

TEST(ReadDenseMask, StoresIdenticalHeadsOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  const int pattern[] = {1, 0, 1, 2, 0, 0};
  std::vector<std::uint8_t> bytes;
  for (const int p : pattern) {
    for (int q = 0; q < 64; ++q) {
      for (int k = 0; k < 64; ++k) bytes.push_back(p == 0 ? k <= q : p == 1 ? k >= q : 1);
    }
  }
  {
    FileEdit file = FileEdit::create(path);
    // Chunks span two batch elements, so planes do not arrive in the order of their numbers.
    write_dataset(file, "/mask", {{2, 3, 64, 64}, {2, 1, 64, 64}}, H5T_STD_U8LE, H5T_NATIVE_UINT8,
                  bytes.data());
  }
  const auto mask = read_dense_mask(path, "/mask", {});
  ASSERT_TRUE(mask) << mask.error().message;
  EXPECT_EQ(mask->group_of, (std::vector<std::int32_t>{0, 1, 0, 2, 1, 1}));
  EXPECT_EQ(mask->num_groups(), 3);
}

TEST(ReadDenseMask, HandlesEmptyExtents) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/q", {{0, 40}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
    write_dataset(file, "/k", {{40, 0}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
    write_dataset(file, "/b", {{0, 3, 4, 4}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
  }
  const auto no_queries = read_dense_mask(path, "/q", {});
  ASSERT_TRUE(no_queries) << no_queries.error().message;
  EXPECT_EQ(no_queries->shape, (MaskShape{1, 1, {0}, {40}}));
  const auto no_keys = read_dense_mask(path, "/k", {});
  ASSERT_TRUE(no_keys) << no_keys.error().message;
  EXPECT_EQ(no_keys->shape, (MaskShape{1, 1, {40}, {0}}));
  EXPECT_THAT(error_of(path, {}, ErrorCode::shape_mismatch, "/b"), HasSubstr("no batch elements"));
}

TEST(ReadDenseMask, RejectsOptionsThatDoNotFit) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  const std::uint8_t values[4] = {};
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/mask", {{2, 2}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8, values);
    write_dataset(file, "/float", {{1, 1}, {}}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values);
    const Type text(H5Tcopy(H5T_C_S1));
    write_dataset(file, "/text", {{2, 2}, {}}, text, text, values);
    const Type colour(H5Tenum_create(H5T_STD_I8LE));
    for (const signed char value : {0, 1}) {
      H5Tenum_insert(colour, value == 0 ? "red" : "blue", &value);
    }
    write_dataset(file, "/colour", {{2, 2}, {}}, colour, colour, values);
    file.group("/group");
  }
  DenseReadOptions options;
  options.drop_below = -5;
  EXPECT_THAT(error_of(path, options, ErrorCode::invalid_argument), HasSubstr("--drop-below"));
  for (const double drop_below : {0.0, 1.0, std::nan("")}) {
    options.drop_below = drop_below;
    EXPECT_THAT(error_of(path, options, ErrorCode::invalid_argument, "/float"),
                HasSubstr("is not below 0"));
  }
  EXPECT_THAT(error_of(path, {}, ErrorCode::invalid_argument, "/text"), HasSubstr("type string"));
  EXPECT_THAT(error_of(path, {}, ErrorCode::invalid_argument, "/colour"),
              HasSubstr("an enumeration other than"));
  EXPECT_THAT(error_of(path, {}, ErrorCode::corrupt_file, "/group"), HasSubstr("not a dataset"));
  EXPECT_THAT(error_of(path, {}, ErrorCode::io, "/absent"), HasSubstr("no object '/absent'"));
  EXPECT_THAT(error_of(path, {}, ErrorCode::io, "/mask/x"), HasSubstr("is not a group"));
  EXPECT_THAT(error_of(folder.file("absent.h5"), {}, ErrorCode::io), HasSubstr("No such file"));
  options = {};
  options.block = {100, 128};
  error_of(path, options, ErrorCode::invalid_argument);
}

TEST(ReadDenseMask, ReportsProgressAndStopsWhenCancelled) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  const std::vector<std::uint8_t> bytes(5000 * 8192);
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/mask", {{5000, 8192}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8, bytes.data());
  }
  for (const int num_threads : {1, 2}) {
    std::vector<std::int64_t> done;
    DenseReadOptions options;
    options.num_threads = num_threads;
    options.progress = [&](std::int64_t done_bytes, std::int64_t total_bytes) {
      EXPECT_EQ(total_bytes, 5000 * 8192);
      done.push_back(done_bytes);
    };
    ASSERT_TRUE(read_dense_mask(path, "/mask", options));
    EXPECT_GE(done.size(), 2u);
    EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
    EXPECT_EQ(done.back(), 5000 * 8192);
    int polls = 0;
    options.is_cancelled = [&] { return ++polls == 2; };
    EXPECT_THAT(error_of(path, options, ErrorCode::io), HasSubstr("interrupted"));
    EXPECT_EQ(polls, 2);
  }
}

TEST(ReadDenseMask, ReadsSoftLinksAndRefusesLinksOut) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  const std::uint8_t values[4] = {1, 1, 1, 1};
  {
    FileEdit file = FileEdit::create(path);
    file.group("/data");
    write_dataset(file, "/data/mask", {{2, 2}, {}}, H5T_STD_U8LE, H5T_NATIVE_UINT8, values);
    file.soft_link("/soft", "/data");
    file.soft_link("/data/relative", "mask");
    file.soft_link("/loop", "/loop/x");
    file.external_link("/outside", "other.h5", "/");
    file.soft_link("/detour", "/outside/mask");
  }
  EXPECT_TRUE(read_dense_mask(path, "/soft/mask", {}));
  EXPECT_TRUE(read_dense_mask(path, "soft/./relative", {}));
  EXPECT_THAT(error_of(path, {}, ErrorCode::corrupt_file, "/loop"), HasSubstr("too many soft"));
  for (const std::string name : {"/outside", "/outside/mask", "/detour"}) {
    EXPECT_THAT(error_of(path, {}, ErrorCode::corrupt_file, name),
                HasSubstr("link to another file, which is refused"));
  }
}

TEST(ReadDenseMask, RejectsTruncatedFiles) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(8);
  const std::vector<bool> cells = random_cells(200 * 300, random);
  const std::vector<std::uint8_t> bytes(cells.begin(), cells.end());
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/mask", {{200, 300}, {64, 64}, true}, H5T_STD_U8LE, H5T_NATIVE_UINT8,
                  bytes.data());
  }
  const std::string whole = testing::read_bytes(path);
  for (std::size_t size = 0; size < whole.size(); size += 997) {
    testing::write_bytes(path, whole.substr(0, size));
    error_of(path, {}, ErrorCode::corrupt_file);
  }
}

TEST(ReadDenseMask, SurvivesFlippedBits) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.h5");
  std::mt19937_64 random(9);
  const std::vector<bool> cells = random_cells(100 * 90, random);
  const std::vector<std::uint8_t> bytes(cells.begin(), cells.end());
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/mask", {{100, 90}, {32, 64}, true}, H5T_STD_U8LE, H5T_NATIVE_UINT8,
                  bytes.data());
  }
  const std::string whole = testing::read_bytes(path);
  for (int trial = 0; trial < 300; ++trial) {
    std::string damaged = whole;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << (random() % 8));
    testing::write_bytes(path, damaged);
    DenseReadOptions options;
    int slabs = 0;  // a flipped extent may ask for any number of fill values
    options.is_cancelled = [&] { return ++slabs > 100; };
    const auto mask = read_dense_mask(path, "/mask", options);
    EXPECT_TRUE(mask || !mask.error().message.empty());
  }
}

}  // namespace
}  // namespace fdma
