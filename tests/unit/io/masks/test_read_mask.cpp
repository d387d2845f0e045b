#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "fdma/formats/hash.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/io/mask_file.hpp"
#include "h5_edits.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using testing::FileEdit;
using ::testing::HasSubstr;
using testing::make_mask;
using testing::make_pattern_mask;
using testing::TemporaryFolder;

struct WrongFile {
  std::string name;
  MaskFormat format;
  std::function<void(FileEdit&)> edit;
  std::string message;
  ErrorCode code = ErrorCode::corrupt_file;
};
std::ostream& operator<<(std::ostream& out, const WrongFile& file) { return out << file.name; }

const std::int64_t kZeros[64] = {};

std::vector<WrongFile> wrong_files() {
  using enum MaskFormat;
  std::vector<WrongFile> files;
  for (const char* name : {"format", "version", "q_len", "kv_len", "num_batches", "num_heads",
                           "block_q", "block_kv", "q_offset", "kv_offset", "batch_offset",
                           "head_offset", "spec", "content_hash", "mask_hash"}) {
    files.push_back({"missing_" + std::string(name), bcsr,
                     [name](FileEdit& file) { file.remove_attribute("/masks/m", name); },
                     "attribute " + std::string(name) + " is missing"});
    const bool is_text = std::string(name) == "format" || std::string(name) == "spec" ||
                         std::string(name).ends_with("hash");
    files.push_back({"mistyped_" + std::string(name), bcsr,
                     [name, is_text](FileEdit& file) {
                       if (is_text) {
                         file.attribute("/masks/m", name, std::int64_t{1});
                       } else {
                         file.attribute("/masks/m", name, std::string("x"));
                       }
                     },
                     "attribute " + std::string(name) + ": expected"});
  }
  const auto integer = [&](const std::string& name, std::int64_t value, const std::string& message,
                           ErrorCode code = ErrorCode::corrupt_file) {
    files.push_back({name + "_" + std::to_string(files.size()), bcsr,
                     [=](FileEdit& file) { file.attribute("/masks/m", name, value); }, message,
                     code});
  };
  integer("version", 0, "attribute version: 0 is outside");
  integer("version", 3, "written by a newer FDMA (file format version 3; this one reads up to 2)",
          ErrorCode::unsupported);
  integer("version", 1000000, "newer FDMA", ErrorCode::unsupported);
  integer("q_len", -1, "attribute q_len: -1 is outside");
  integer("q_len", 71, "");
  integer("q_len", kMaxLength + 1, "attribute q_len");
  integer("q_len", kMaxLength, "");
  integer("kv_len", 0, "");
  integer("num_batches", 0, "attribute num_batches: 0 is outside");
  integer("num_batches", 3, "group_of: extents [2, 3], expected [3, 3]");
  integer("num_heads", 2147483647, "num_heads");
  integer("num_heads", 4, "group_of: extents [2, 3], expected [2, 4]");
  integer("block_q", 0, "attribute block_q");
  integer("block_q", 17, "block");
  integer("block_q", 4096, "attribute block_q: 4096 is outside");
  integer("block_kv", 32, "");
  integer("q_offset", 12, "content_hash");
  integer("is_per_batch", 0, "attribute is_per_batch: 0 is outside");
  integer("is_per_head", 2, "attribute is_per_head: 2 is outside");
  const auto text = [&](const std::string& name, const std::string& value,
                        const std::string& message) {
    files.push_back({name + "_" + std::to_string(files.size()), bcsr,
                     [=](FileEdit& file) { file.attribute("/masks/m", name, value); }, message});
  };
  text("format", "csr", "attribute format");
  text("format", "segment", "");
  text("content_hash", std::string(32, '0'), "content_hash is 0000");
  text("content_hash", "123", "content_hash: not 32 hexadecimal digits");
  text("mask_hash", std::string(32, 'G'), "mask_hash: not 32 hexadecimal digits");
  text("mask_hash", std::string(32, '0'), "mask_hash is 0000");
  text("surplus", "x", "unknown attribute surplus");
  text("is_per_batch", "1", "attribute is_per_batch: expected");
  files.push_back({"variable_spec", bcsr,
                   [](FileEdit& file) { file.attribute("/masks/m", "spec", "causal", true); },
                   "attribute spec: expected a string of fixed length"});

  const auto edit = [&](const std::string& name, MaskFormat format,
                        std::function<void(FileEdit&)> change, const std::string& message,
                        ErrorCode code = ErrorCode::corrupt_file) {
    files.push_back({name, format, std::move(change), message, code});
  };
  const std::pair<MaskFormat, std::vector<const char*>> arrays[] = {
      {segment,
       {"runs", "segments", "bitmaps", "row_offsets", "row_intervals", "column_offsets",
        "column_intervals"}},
      {parametric, {"parameters", "cu_seqlens"}},
      {bitset, {"active", "full", "partial_offsets", "bitmap_index", "bitmaps"}},
      {bcsr, {"row_offsets", "col_indices", "bitmap_index", "bitmaps"}},
      {columns, {"offsets", "intervals"}},
      {dense, {"words"}}};
  static_assert(std::size(arrays) == kMaskFormats.size());
  for (const auto& [format, names] : arrays) {
    for (const std::string name : names) {
      const std::string label = std::string(to_string(format)) + "_" + name;
      const std::string path = "/masks/m/groups/1/" + name;
      edit(
          "absent_" + label, format, [=](FileEdit& file) { file.remove(path); },
          "dataset " + name + " is missing");
      edit(
          "float_" + label, format,
          [=](FileEdit& file) {
            file.remove(path);
            file.dataset(path, H5T_IEEE_F64LE, H5T_NATIVE_INT64, {4}, kZeros);
          },
          "type float64, expected");
      edit(
          "narrow_" + label, format,
          [=](FileEdit& file) {
            file.remove(path);
            file.dataset(path, H5T_STD_I16LE, H5T_NATIVE_INT64, {4}, kZeros);
          },
          "type int16, expected");
      edit(
          "cubic_" + label, format,
          [=](FileEdit& file) {
            const hid_t type =
                name == "segments" || name.ends_with("intervals") || name == "bitmap_index" ||
                        name == "col_indices"
                    ? H5T_STD_I32LE
                : name == "bitmaps" || name == "active" || name == "full" || name == "words"
                    ? H5T_STD_U64LE
                    : H5T_STD_I64LE;
            file.remove(path);
            file.dataset(path, type, H5T_NATIVE_INT64, {2, 2, 2}, kZeros);
          },
          "extents [2, 2, 2], expected");
      edit(
          "group_instead_of_" + label, format,
          [=](FileEdit& file) {
            file.remove(path);
            file.group(path);
          },
          "not a dataset");
    }
  }
  edit(
      "group_map_range", bcsr, [](FileEdit& file) { file.element("/masks/m/group_of", 4, 9); },
      "group_of: entry 4 is 9");
  edit(
      "group_map_negative", bcsr, [](FileEdit& file) { file.element("/masks/m/group_of", 4, -1); },
      "group_of: entry 4 is -1");
  edit(
      "group_map_gap", bcsr, [](FileEdit& file) { file.element("/masks/m/group_of", 1, 0); }, "");
  edit(
      "surplus_group", bcsr, [](FileEdit& file) { file.group("/masks/m/groups/3"); },
      "unknown object 3");
  edit(
      "surplus_array", bcsr, [](FileEdit& file) { file.group("/masks/m/groups/0/more"); },
      "unknown object more");
  edit(
      "surplus_object", bcsr, [](FileEdit& file) { file.group("/masks/m/more"); },
      "unknown object more");
  edit(
      "absent_group", bcsr, [](FileEdit& file) { file.remove("/masks/m/groups/2"); },
      "group 2 is missing");
  edit(
      "absent_groups", bcsr, [](FileEdit& file) { file.remove("/masks/m/groups"); },
      "group groups is missing");
  edit(
      "absent_masks", bcsr, [](FileEdit& file) { file.remove("/masks"); }, "no group /masks");
  edit(
      "empty_masks", bcsr, [](FileEdit& file) { file.remove("/masks/m"); }, "holds no mask");
  edit(
      "bad_column", bcsr,
      [](FileEdit& file) { file.element("/masks/m/groups/0/col_indices", 0, 99); }, "col_indices");
  edit(
      "bad_bitmap_bit", bcsr,
      [](FileEdit& file) { file.element("/masks/m/groups/0/bitmaps", 0, 12345); }, "");
  edit(
      "bad_kind", segment, [](FileEdit& file) { file.element("/masks/m/groups/0/segments", 4, 9); },
      "");
  edit(
      "bad_run", segment,
      [](FileEdit& file) { file.element("/masks/m/groups/0/runs", 0, std::int64_t{1} << 40); },
      "runs: row 0, column 0: 1099511627776 is not a 32-bit count");
  edit(
      "two_lengths", bcsr,
      [](FileEdit& file) {
        file.dataset("/masks/m/q_lens", H5T_STD_I64LE, H5T_NATIVE_INT64, {2}, kZeros);
      },
      "both attribute q_len and dataset q_lens");
  edit(
      "external_link", bcsr,
      [](FileEdit& file) {
        file.move("/masks/m/group_of", "/kept");
        file.external_link("/masks/m/group_of", "other.h5", "/kept");
      },
      "link to another file, which is refused");
  edit(
      "external_mask", bcsr,
      [](FileEdit& file) {
        file.remove("/masks/m");
        file.external_link("/masks/m", "other.h5", "/masks/m");
      },
      "link to another file, which is refused");
  edit(
      "soft_link_loop", bcsr,
      [](FileEdit& file) {
        file.remove("/masks/m/group_of");
        file.soft_link("/masks/m/group_of", "group_of");
      },
      "too many soft links");
  edit(
      "dangling_soft_link", bcsr,
      [](FileEdit& file) {
        file.remove("/masks/m/group_of");
        file.soft_link("/masks/m/group_of", "/nowhere");
      },
      "no object");
  edit(
      "external_storage", bcsr,
      [](FileEdit& file) {
        file.remove("/masks/m/group_of");
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_external(creation, "/etc/passwd", 0, 24);
        file.dataset("/masks/m/group_of", H5T_STD_I32LE, H5T_NATIVE_INT64, {2, 3}, nullptr,
                     creation);
        H5Pclose(creation);
      },
      "external storage");
  edit(
      "virtual_dataset", bcsr,
      [](FileEdit& file) {
        file.remove("/masks/m/group_of");
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        const hsize_t extents[] = {2, 3};
        const hid_t space = H5Screate_simple(2, extents, nullptr);
        H5Pset_virtual(creation, space, "other.h5", "/x", space);
        file.dataset("/masks/m/group_of", H5T_STD_I32LE, H5T_NATIVE_INT64, {2, 3}, nullptr,
                     creation);
        H5Sclose(space);
        H5Pclose(creation);
      },
      "virtual dataset");
  edit(
      "no_data", dense,  // extents without values: fill values are no mask
      [](FileEdit& file) {
        file.remove("/masks/m/groups/0/words");
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        const hsize_t chunk[] = {70, 2};
        H5Pset_chunk(creation, 2, chunk);
        file.dataset("/masks/m/groups/0/words", H5T_STD_U64LE, H5T_NATIVE_INT64, {70, 2}, nullptr,
                     creation);
        H5Pclose(creation);
      },
      "the file holds only 0 bytes");
  edit(
      "huge_extents", parametric,
      [](FileEdit& file) {
        file.remove("/masks/m/groups/0/cu_seqlens");
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        const hsize_t chunk[] = {1024};
        H5Pset_chunk(creation, 1, chunk);
        file.dataset("/masks/m/groups/0/cu_seqlens", H5T_STD_I64LE, H5T_NATIVE_INT64,
                     {hsize_t{1} << 50}, nullptr, creation);
        H5Pclose(creation);
      },
      "need");
  edit(
      "strange_filter", dense,
      [](FileEdit& file) {
        file.remove("/masks/m/groups/0/words");
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        const hsize_t chunk[] = {70, 2};
        H5Pset_chunk(creation, 2, chunk);
        H5Pset_deflate(creation, 1);
        H5Pset_deflate(creation, 1);
        std::vector<std::int64_t> zeros(140);
        file.dataset("/masks/m/groups/0/words", H5T_STD_U64LE, H5T_NATIVE_INT64, {70, 2},
                     zeros.data(), creation);
        H5Pclose(creation);
      },
      "filters are not shuffle and deflate, once each");
  return files;
}

class WrongFiles : public ::testing::TestWithParam<WrongFile> {};
INSTANTIATE_TEST_SUITE_P(ReadMask, WrongFiles, ::testing::ValuesIn(wrong_files()),
                         [](const auto& p) { return p.param.name; });

TEST_P(WrongFiles, AreRejectedWithTheirReason) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, {{"m", make_mask(GetParam().format)}}));
  {
    FileEdit file(path);
    GetParam().edit(file);
  }
  const auto read = read_mask(path);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, GetParam().code) << read.error().message;
  EXPECT_THAT(read.error().message, HasSubstr(GetParam().message));
  EXPECT_THAT(read.error().message, HasSubstr(path));
}

// Version 1 was written with two definitions of the mask hash.
TEST(ReadMask, DoesNotCompareTheMaskHashOfVersion1) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  const BlockMask mask = make_mask(MaskFormat::segment);
  ASSERT_TRUE(write_masks(path, {{"m", mask}}));
  {
    FileEdit file(path);
    file.attribute("/masks/m", "version", std::int64_t{1});
    file.attribute("/masks/m", "mask_hash", std::string(32, '0'));
  }
  const auto read = read_mask(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(mask_hash(*read), mask_hash(mask));
}

TEST(ReadMask, ReadsPatternsAsTheyWereWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  const BlockMask mask = make_pattern_mask();
  for (const bool compress : {true, false}) {
    const auto written = write_masks(path, {{"m", mask}}, WriteOptions{.compress = compress});
    ASSERT_TRUE(written) << written.error().message;
    const auto read = read_mask(path);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(read->groups == mask.groups);
    EXPECT_TRUE(std::get<std::vector<SegmentMask>>(read->groups)[0].has_patterns());
    EXPECT_EQ(content_hash(*read), content_hash(mask));
    EXPECT_EQ(mask_hash(*read), mask_hash(mask));
    std::filesystem::remove(path);
  }
}

// A crop to one tile may keep a pattern of many.
TEST(ReadMask, ReadsPatternsOfMoreTilesThanTheMask) {
  SegmentBuilder builder(10, 10, {16, 16});
  std::vector<std::int32_t> tiles;
  for (std::uint64_t word = 1; word <= 5; ++word) {
    const std::uint64_t words[] = {word, 0, 0, 0};
    tiles.push_back(builder.intern_bitmap(words));
  }
  const auto pattern = builder.add_pattern(1, 5, 0, tiles);
  const TileSegment segment{0, 1, 0, 0, pattern.kind, pattern.data_index};
  builder.add_rows(0, 1, std::span(&segment, 1));
  const BlockMask mask = make_block_mask({1, 1, {10}, {10}}, {16, 16}, {builder.finish()});
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, {{"m", mask}}));
  const auto read = read_mask(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->groups == mask.groups);
}

TEST(ReadMask, RejectsPatternsThatAreDamaged) {
  const auto expect = [](const std::string& words, auto edit) {
    const TemporaryFolder folder;
    const std::string path = folder.file("m.h5");
    ASSERT_TRUE(write_masks(path, {{"m", make_pattern_mask()}}));
    {
      FileEdit file(path);
      edit(file);
    }
    const auto read = read_mask(path);
    ASSERT_FALSE(read) << words;
    EXPECT_EQ(read.error().code, ErrorCode::corrupt_file);
    EXPECT_THAT(read.error().message, HasSubstr(words));
  };
  const std::string group = "/masks/m/groups/0/";
  for (const std::string name : {"pattern_offsets", "pattern_tiles"}) {
    expect("dataset " + name + " is missing", [&](FileEdit& file) { file.remove(group + name); });
  }
  expect("unknown object pattern_offsets",
         [&](FileEdit& file) { file.remove(group + "patterns"); });
  // Version 1 knew no patterns.
  expect("unknown object pattern_offsets",
         [](FileEdit& file) { file.attribute("/masks/m", "version", std::int64_t{1}); });
  expect("patterns: extents [2, 3], expected [at most 67108864, 4]", [&](FileEdit& file) {
    file.remove(group + "patterns");
    file.dataset(group + "patterns", H5T_STD_I32LE, H5T_NATIVE_INT64, {2, 3}, kZeros);
  });
  expect("need 8 bytes each, but the file holds only", [&](FileEdit& file) {
    file.remove(group + "pattern_offsets");
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk[] = {1024};
    H5Pset_chunk(creation, 1, chunk);
    file.dataset(group + "pattern_offsets", H5T_STD_I64LE, H5T_NATIVE_INT64, {hsize_t{1} << 26},
                 nullptr, creation);
    H5Pclose(creation);
  });
  expect("pattern_offsets: extents [67108866], expected [at most 67108865]", [&](FileEdit& file) {
    file.remove(group + "pattern_offsets");
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk[] = {1024};
    H5Pset_chunk(creation, 1, chunk);
    file.dataset(group + "pattern_offsets", H5T_STD_I64LE, H5T_NATIVE_INT64,
                 {(hsize_t{1} << 26) + 2}, nullptr, creation);
    H5Pclose(creation);
  });
  expect("patterns[0]: skew 3, expected 0 to 2",
         [&](FileEdit& file) { file.element(group + "patterns", 2, 3); });
  expect("pattern_tiles[0]: column 7, expected 0 to 2 in row 0 of pattern 0",
         [&](FileEdit& file) { file.element(group + "pattern_tiles", 0, 7); });
  expect("pattern_offsets[2]: 4, expected at least 9",
         [&](FileEdit& file) { file.element(group + "pattern_offsets", 1, std::int64_t{9}); });
  expect("content_hash is", [&](FileEdit& file) {  // another bitmap: a valid mask, not this one
    file.element(group + "pattern_tiles", 1, 1);
  });
}

TEST(ReadMask, FollowsSoftLinksInsideTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, {{"m", make_mask(MaskFormat::bcsr)}}));
  {
    FileEdit file(path);
    file.move("/masks/m/group_of", "/elsewhere");
    file.soft_link("/masks/m/group_of", "/elsewhere");
  }
  const auto read = read_mask(path);
  EXPECT_TRUE(read) << read.error().message;
}

TEST(ReadMask, ReadsFilesInTheOtherByteOrder) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  const BlockMask mask = make_mask(MaskFormat::bcsr);
  ASSERT_TRUE(write_masks(path, {{"m", mask}}));
  {
    FileEdit file(path);
    file.remove("/masks/m/group_of");
    file.dataset("/masks/m/group_of", H5T_STD_I32BE, H5T_NATIVE_INT32, {2, 3},
                 mask.group_of.data());
  }
  const auto read = read_mask(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->group_of, mask.group_of);
}

TEST(ReadMask, RejectsWhatIsNoFile) {
  const TemporaryFolder folder;
  const auto expect_error = [&](const std::string& path, ErrorCode code, const std::string& text) {
    const auto read = read_mask(path);
    ASSERT_FALSE(read) << path;
    EXPECT_EQ(read.error().code, code);
    EXPECT_THAT(read.error().message, HasSubstr(text));
    const auto names = list_masks(path);
    ASSERT_FALSE(names);
    EXPECT_EQ(names.error().code, code);
  };
  expect_error(folder.file("absent.h5"), ErrorCode::io, "No such file or directory");
  expect_error(folder.path(), ErrorCode::io, "Is a directory");
  expect_error("/dev/null", ErrorCode::io, "not a regular file");
  testing::write_bytes(folder.file("empty.h5"), "");
  expect_error(folder.file("empty.h5"), ErrorCode::corrupt_file, "is empty");
  std::mt19937_64 random(1);
  std::string noise(100000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  testing::write_bytes(folder.file("noise.h5"), noise);
  expect_error(folder.file("noise.h5"), ErrorCode::corrupt_file, "is not an HDF5 file");
}

TEST(ReadMask, RejectsFilesTruncatedAnywhere) {
  const TemporaryFolder folder;
  for (const MaskFormat format : kMaskFormats) {
    const std::string path = folder.file("m.h5");
    ASSERT_TRUE(write_masks(path, {{"m", make_mask(format)}}));
    const std::string bytes = testing::read_bytes(path);
    for (std::size_t size = 1; size < bytes.size(); size += 997) {
      testing::write_bytes(path, bytes.substr(0, size));
      const auto read = read_mask(path);
      ASSERT_FALSE(read) << to_string(format) << " cut to " << size;
      EXPECT_EQ(read.error().code, ErrorCode::corrupt_file) << read.error().message;
    }
  }
}

// Whatever bit is flipped, the result is an error or the mask as it was.
TEST(ReadMask, SurvivesFlippedBits) {
  const TemporaryFolder folder;
  std::mt19937_64 random(2);
  for (const MaskFormat format : kMaskFormats) {
    const BlockMask mask = make_mask(format);
    const std::string path = folder.file("m.h5");
    ASSERT_TRUE(write_masks(path, {{"m", mask}}));
    const std::string bytes = testing::read_bytes(path);
    for (int trial = 0; trial < 100; ++trial) {
      std::string damaged = bytes;
      const int flips = 1 + static_cast<int>(random() % 4);
      for (int i = 0; i < flips; ++i) {
        damaged[random() % damaged.size()] ^= static_cast<char>(1 << (random() % 8));
      }
      testing::write_bytes(path, damaged);
      const auto read = read_mask(path);
      EXPECT_TRUE(!read || read->groups == mask.groups);
    }
  }
}

}  // namespace
}  // namespace fdma
