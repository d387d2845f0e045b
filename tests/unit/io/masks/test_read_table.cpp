#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "fdma/io/dense_dataset.hpp"
#include "h5_edits.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using testing::FileEdit;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::Type;
using testing::write_dataset;

TEST(ReadTable, ReadsEveryKindAndRank) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  const std::int32_t values[] = {0, 1, 2, -3, 4, 5};
  const std::uint8_t flags[] = {0, 1, 1, 0};
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/scalar", {{}, {}}, H5T_STD_I64LE, H5T_NATIVE_INT32, values + 3);
    write_dataset(file, "/big", {{2, 3}, {}}, H5T_STD_I16BE, H5T_NATIVE_INT32, values);
    write_dataset(file, "/u64", {{1, 1, 1, 2}, {}}, H5T_STD_U64LE, H5T_NATIVE_INT32, values);
    const Type boolean(testing::make_boolean_type());
    write_dataset(file, "/flags", {{4}, {}}, boolean, boolean, flags);
    write_dataset(file, "/empty", {{0}, {}}, H5T_STD_I32LE, H5T_NATIVE_INT32, nullptr);
    write_dataset(file, "/float", {{2}, {}}, H5T_IEEE_F32LE, H5T_NATIVE_INT32, values);
    write_dataset(file, "/double", {{2}, {}}, H5T_IEEE_F64LE, H5T_NATIVE_INT32, values);
    write_dataset(file, "/five", {{1, 1, 1, 1, 1}, {}}, H5T_STD_I32LE, H5T_NATIVE_INT32, values);
  }
  const auto scalar = read_table(path, "/scalar");
  ASSERT_TRUE(scalar) << scalar.error().message;
  EXPECT_EQ(scalar->rank, 0);
  EXPECT_EQ(scalar->dtype, DType::int64);
  EXPECT_EQ(*static_cast<const std::int64_t*>(scalar->view().data), -3);
  const auto big = read_table(path, "big");
  ASSERT_TRUE(big) << big.error().message;
  EXPECT_EQ(big->dtype, DType::int16);
  const TensorView view = big->view();
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.extents[0], 2);
  EXPECT_EQ(view.extents[1], 3);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(static_cast<const std::int16_t*>(view.data)[i], values[i]);
  }
  const auto wide = read_table(path, "/u64");
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->rank, 4);
  EXPECT_EQ(wide->dtype, DType::uint64);
  const auto boolean = read_table(path, "/flags");
  ASSERT_TRUE(boolean) << boolean.error().message;
  EXPECT_EQ(boolean->dtype, DType::boolean);
  EXPECT_EQ(std::memcmp(boolean->bytes.data(), flags, 4), 0);
  const auto scores = read_table(path, "/float");
  ASSERT_TRUE(scores) << scores.error().message;
  EXPECT_EQ(scores->dtype, DType::float32);
  EXPECT_EQ(static_cast<const float*>(scores->view().data)[1], 1.0F);
  const auto empty = read_table(path, "/empty");
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->view().num_elements(), 0);

  const auto expect_error = [&](const std::string& name, ErrorCode code, const std::string& text) {
    const auto table = read_table(path, name);
    ASSERT_FALSE(table);
    EXPECT_EQ(table.error().code, code);
    EXPECT_THAT(table.error().message, HasSubstr(text));
  };
  expect_error("/double", ErrorCode::invalid_argument, "type float64");
  expect_error("/five", ErrorCode::shape_mismatch, "5 dimensions");
  expect_error("/absent", ErrorCode::io, "no object '/absent'");
}

TEST(ReadTable, RejectsExtentsBeyondMemory) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/t", {{hsize_t{1} << 60}, {1024}}, H5T_STD_I64LE, H5T_NATIVE_INT64,
                  nullptr);
  }
  const auto table = read_table(path, "/t");
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, ErrorCode::out_of_memory);
}

// A file of a kilobyte holds a gigabyte of zeros that were never written.
TEST(ReadTable, RejectsExtentsFarBeyondTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  {
    FileEdit file = FileEdit::create(path);
    testing::write_dataset(file, "/t", {{1 << 27}, {1 << 20}, false}, H5T_STD_I64LE,
                           H5T_NATIVE_INT64, nullptr);
    testing::write_dataset(file, "/small", {{1 << 10}, {1 << 10}, false}, H5T_STD_I64LE,
                           H5T_NATIVE_INT64, nullptr);
  }
  const auto table = read_table(path, "/t");
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, ErrorCode::corrupt_file);
  EXPECT_THAT(table.error().message, HasSubstr("the file holds only 0 bytes"));
  EXPECT_TRUE(read_table(path, "/small"));
}

}  // namespace
}  // namespace fdma
