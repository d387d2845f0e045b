#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "fdma/io/tensor_dataset.hpp"
#include "h5_edits.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using testing::FileEdit;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::Type;
using testing::write_dataset;

TensorSpec spec_of(DType dtype, std::initializer_list<std::int64_t> extents) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.rank = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), spec.extents.begin());
  return spec;
}

void expect_error(const std::string& path, const std::string& name, ErrorCode code,
                  const std::string& text) {
  const auto spec = describe_tensor(path, name);
  ASSERT_FALSE(spec) << name;
  EXPECT_EQ(spec.error().code, code) << name;
  EXPECT_THAT(spec.error().message, HasSubstr(text));
  EXPECT_THAT(spec.error().message, HasSubstr(name));
}

TEST(OwnedTensor, StartsZeroAndAligned) {
  auto tensor = OwnedTensor::zeros(spec_of(DType::float16, {3, 0 + 5, 7}));
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->size_bytes(), 3 * 5 * 7 * 2);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor->data()) % 64, 0u);
  const auto* bytes = static_cast<const unsigned char*>(tensor->data());
  EXPECT_EQ(std::accumulate(bytes, bytes + tensor->size_bytes(), 0), 0);
  EXPECT_TRUE(tensor->view().is_contiguous());
  EXPECT_EQ(tensor->mutable_view().strides[0], 35);
  EXPECT_EQ(to_string(tensor->spec()), "float16 [3, 5, 7]");
}

TEST(OwnedTensor, RejectsWhatCannotBe) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  const auto huge = OwnedTensor::zeros(spec_of(DType::float32, {kHuge, kHuge, kHuge, 1}));
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, ErrorCode::out_of_memory);
  const auto large = OwnedTensor::zeros(spec_of(DType::float32, {kHuge, 1 << 20}));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, ErrorCode::out_of_memory);
  const auto negative = OwnedTensor::zeros(spec_of(DType::float32, {-1}));
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().code, ErrorCode::invalid_argument);
  EXPECT_TRUE(OwnedTensor::zeros(spec_of(DType::float32, {kHuge, 0, kHuge})));
}

TEST(TensorDataset, RoundTripsEveryTypeAndRank) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  std::vector<std::uint16_t> half(24);
  for (std::size_t i = 0; i < half.size(); ++i) half[i] = static_cast<std::uint16_t>(i * 2731);
  std::vector<float> single{0.5f, -1e30f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()};
  const std::int64_t four[] = {2, 3, 2, 2}, one[] = {4}, none[] = {0, 3};
  const std::vector<NamedTensor> tensors{
      {"half", make_contiguous_view(half.data(), DType::float16, 4, four)},
      {"brain", make_contiguous_view(half.data(), DType::bfloat16, 4, four)},
      {"single", make_contiguous_view(single.data(), DType::float32, 1, one)},
      {"scalar", make_contiguous_view(single.data(), DType::float32, 0, one)},
      {"empty", make_contiguous_view(nullptr, DType::float16, 2, none)}};
  ASSERT_TRUE(write_tensors(path, tensors,
                            {{"backend", std::string("cpu")}, {"scale", 0.125}, {"n", {-3}}}));
  for (const NamedTensor& written : tensors) {
    const auto spec = describe_tensor(path, "/" + written.name);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->dtype, written.tensor.dtype) << written.name;
    EXPECT_EQ(spec->rank, written.tensor.rank);
    EXPECT_EQ(spec->num_elements(), written.tensor.num_elements());
    const auto read = read_tensor(path, written.name, *spec);
    ASSERT_TRUE(read) << read.error().message;
    if (read->size_bytes() == 0) continue;
    EXPECT_EQ(std::memcmp(read->data(), written.tensor.data,
                          static_cast<std::size_t>(read->size_bytes())),
              0)
        << written.name;
  }
  const std::string bytes = testing::read_bytes(path);
  ASSERT_TRUE(write_tensors(path, tensors,
                            {{"backend", std::string("cpu")}, {"scale", 0.125}, {"n", {-3}}}));
  EXPECT_EQ(testing::read_bytes(path), bytes);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"t.h5"});
}

TEST(TensorDataset, ReadsWhatOthersStore) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  std::vector<std::uint16_t> bits(64, 0x3f80);
  std::vector<float> values(4096, 0.25f);
  {
    FileEdit file = FileEdit::create(path);
    file.group("/layer");
    write_dataset(file, "/layer/q", {{4, 16}, {}}, H5T_STD_U16LE, H5T_STD_U16LE, bits.data());
    file.attribute("/layer/q", "dtype", "bfloat16", true);
    write_dataset(file, "/layer/k", {{64, 64}, {16, 16}, true}, H5T_IEEE_F32LE, H5T_IEEE_F32LE,
                  values.data());
    file.soft_link("/k", "/layer/k");
    const Type half(testing::make_half_type(H5T_ORDER_LE));
    write_dataset(file, "/h", {{8, 8}, {4, 4}}, half, half, bits.data());
  }
  const auto brain = describe_tensor(path, "/layer/q");
  ASSERT_TRUE(brain) << brain.error().message;
  EXPECT_EQ(*brain, spec_of(DType::bfloat16, {4, 16}));
  const auto packed = read_tensor(path, "/k", spec_of(DType::float32, {64, 64}));
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_EQ(std::memcmp(packed->data(), values.data(), 4096 * 4), 0);
  const auto half = read_tensor(path, "h", spec_of(DType::float16, {8, 8}));
  ASSERT_TRUE(half) << half.error().message;
  EXPECT_EQ(std::memcmp(half->data(), bits.data(), 128), 0);
  EXPECT_TRUE(*has_object(path, "/layer"));
  EXPECT_TRUE(*has_object(path, "k"));
  EXPECT_FALSE(*has_object(path, "/layer/v"));
  EXPECT_FALSE(*has_object(path, "/k/v"));
}

TEST(TensorDataset, RejectsOtherTypesAndRanks) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  const std::vector<double> values(32, 1.0);
  const void* data = values.data();
  {
    FileEdit file = FileEdit::create(path);
    file.group("/g");
    write_dataset(file, "/f64", {{4}, {}}, H5T_IEEE_F64LE, H5T_IEEE_F64LE, data);
    write_dataset(file, "/be", {{4}, {}}, H5T_IEEE_F32BE, H5T_IEEE_F32BE, data);
    const Type half(testing::make_half_type(H5T_ORDER_BE));
    write_dataset(file, "/half_be", {{4}, {}}, half, half, data);
    write_dataset(file, "/u16", {{4}, {}}, H5T_STD_U16LE, H5T_STD_U16LE, data);
    write_dataset(file, "/u16be", {{4}, {}}, H5T_STD_U16BE, H5T_STD_U16BE, data);
    file.attribute("/u16be", "dtype", "bfloat16");
    write_dataset(file, "/i32", {{4}, {}}, H5T_STD_I32LE, H5T_STD_I32LE, data);
    const Type text(H5Tcopy(H5T_C_S1));
    write_dataset(file, "/text", {{4}, {}}, text, text, data);
    write_dataset(file, "/five", {{1, 1, 1, 1, 2}, {}}, H5T_IEEE_F32LE, H5T_IEEE_F32LE, data);
    write_dataset(file, "/good", {{4}, {}}, H5T_IEEE_F32LE, H5T_IEEE_F32LE, data);
    file.external_link("/out", "other.h5", "/x");
  }
  const auto wrong = ErrorCode::invalid_argument;
  expect_error(path, "/f64", wrong, "type float64, expected little-endian float32, float16 or");
  expect_error(path, "/be", wrong, "type big-endian float32, expected");
  expect_error(path, "/half_be", wrong, "type big-endian float16, expected");
  expect_error(path, "/u16", wrong, "type uint16 without attribute dtype = \"bfloat16\"");
  expect_error(path, "/u16be", wrong, "type big-endian uint16");
  expect_error(path, "/i32", wrong, "type int32");
  expect_error(path, "/text", wrong, "type string");
  expect_error(path, "/five", ErrorCode::shape_mismatch, "5 dimensions [1, 1, 1, 1, 2]");
  expect_error(path, "/g", ErrorCode::corrupt_file, "not a dataset");
  expect_error(path, "/out", ErrorCode::corrupt_file, "link to another file");
  expect_error(path, "/none", ErrorCode::io, "no object '/none' in the file; '/' holds be, f64,");
  expect_error(path, "/g/q", ErrorCode::io, "'/g/' holds nothing");
  const auto other = read_tensor(path, "/good", spec_of(DType::float32, {5}));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::shape_mismatch);
  EXPECT_THAT(other.error().message, HasSubstr("expected float32 [5], got float32 [4]"));
}

TEST(TensorDataset, RejectsExtentsThatTheFileDoesNotHold) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  {
    FileEdit file = FileEdit::create(path);
    write_dataset(file, "/huge", {{hsize_t{1} << 50}, {1024}}, H5T_IEEE_F32LE, H5T_IEEE_F32LE,
                  nullptr);
    write_dataset(file, "/packed", {{hsize_t{1} << 50}, {1024}, true}, H5T_IEEE_F32LE,
                  H5T_IEEE_F32LE, nullptr);
    write_dataset(file, "/late", {{100}, {}}, H5T_IEEE_F32LE, H5T_IEEE_F32LE, nullptr);
    write_dataset(file, "/chunk", {{hsize_t{1} << 40}, {hsize_t{1} << 29}, true}, H5T_IEEE_F32LE,
                  H5T_IEEE_F32LE, nullptr);
  }
  expect_error(path, "/huge", ErrorCode::corrupt_file, "the file holds only 0 bytes");
  expect_error(path, "/packed", ErrorCode::corrupt_file, "the file holds only 0 bytes");
  expect_error(path, "/late", ErrorCode::corrupt_file, "values never written");
  expect_error(path, "/chunk", ErrorCode::unsupported, "chunks [536870912]");
}

TEST(TensorDataset, RejectsFiltersThatNoTensorIsStoredWith) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  const auto write = [](FileEdit& file, const char* name, const auto& add_filters) {
    const std::vector<float> values(8, 1.0F);
    const hsize_t chunk = 4;
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, 1, &chunk);
    add_filters(creation);
    file.dataset(name, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {8}, values.data(), creation);
    H5Pclose(creation);
  };
  {
    FileEdit file = FileEdit::create(path);
    write(file, "/bits", [](hid_t creation) { H5Pset_nbit(creation); });
    write(file, "/twice", [](hid_t creation) {
      H5Pset_deflate(creation, 1);
      H5Pset_deflate(creation, 1);
    });
  }
  expect_error(path, "/bits", ErrorCode::unsupported, "filter 5; a tensor is stored plainly");
  expect_error(path, "/twice", ErrorCode::corrupt_file, "deflated twice");
}

// Every truncation and every changed byte of a small file gives an error or a tensor, never a
// crash.
TEST(TensorDataset, SurvivesDamage) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), 0.f);
  const std::int64_t extents[] = {1, 8, 2, 4};
  ASSERT_TRUE(write_tensors(
      path, {{"q", make_contiguous_view(values.data(), DType::bfloat16, 4, extents)}}));
  const std::string whole = testing::read_bytes(path);
  const std::string damaged = folder.file("damaged.h5");
  const auto look = [&](const std::string& bytes) {
    testing::write_bytes(damaged, bytes);
    const auto spec = describe_tensor(damaged, "q");
    if (spec) return read_tensor(damaged, "q", *spec).has_value();
    EXPECT_FALSE(spec.error().message.empty());
    return false;
  };
  EXPECT_TRUE(look(whole));
  for (std::size_t size = 0; size < whole.size(); size += 17) {
    EXPECT_FALSE(look(whole.substr(0, size))) << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(at % 3 == 0 ? 0xff : bytes[at] ^ (1 << at % 8));
    look(bytes);
  }
}

TEST(WriteTensors, RejectsWrongArguments) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  const float values[4] = {};
  const std::int64_t extents[] = {2, 2};
  const TensorView good = make_contiguous_view(values, DType::float32, 2, extents);
  TensorView strided = good;
  std::swap(strided.strides[0], strided.strides[1]);
  TensorView wide = good;
  wide.dtype = DType::float64;
  const auto expect_refused = [&](const std::vector<NamedTensor>& tensors,
                                  const std::vector<FileAttribute>& attributes,
                                  const std::string& text) {
    const auto written = write_tensors(path, tensors, attributes);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(written.error().message, HasSubstr(text));
  };
  expect_refused({{"a/b", good}}, {}, "tensor name 'a/b'");
  expect_refused({{"a", good}, {"a", good}}, {}, "'a' is given twice");
  expect_refused({{"a", strided}}, {}, "contiguous");
  expect_refused({{"a", wide}}, {}, "got float64");
  expect_refused({{"a", good}}, {{"x", {1}}, {"x", {2}}}, "attribute 'x' is given twice");
  expect_refused({{"a", good}}, {{"x", std::string(40000, 'x')}}, "attribute 'x': longer");
  EXPECT_TRUE(folder.names().empty());
  const auto nowhere = write_tensors(folder.file("none/t.h5"), {{"a", good}});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::io);
}

}  // namespace
}  // namespace fdma
