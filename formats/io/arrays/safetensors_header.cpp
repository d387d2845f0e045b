#include "io/arrays/safetensors_header.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace fdma::io {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // of the format's own reader
constexpr std::size_t kMaxDimensions = 16;

struct SafetensorsType {
  std::string_view name;
  DType dtype;
};
constexpr SafetensorsType kTypes[] = {
    {"BOOL", DType::boolean}, {"I8", DType::int8},       {"U8", DType::uint8},
    {"I16", DType::int16},    {"U16", DType::uint16},    {"I32", DType::int32},
    {"U32", DType::uint32},   {"I64", DType::int64},     {"U64", DType::uint64},
    {"F16", DType::float16},  {"BF16", DType::bfloat16}, {"F32", DType::float32},
    {"F64", DType::float64},
};

// Whole numbers of a JSON list, none of them negative; false if it holds anything else.
bool read_numbers(const Json& list, std::size_t most, std::vector<std::int64_t>& numbers) {
  if (!list.is_array() || list.size() > most) return false;
  for (const Json& entry : list) {
    if (!entry.is_number_unsigned() || entry.get<std::uint64_t>() > (std::uint64_t{1} << 62)) {
      return false;
    }
    numbers.push_back(entry.get<std::int64_t>());
  }
  return true;
}

Result<StoredArray> read_tensor_entry(const InputBytes& file, const std::string& name,
                                      const Json& entry, std::int64_t data_offset) {
  const std::string where = fmt::format("'{}:/{}'", file.path(), name);
  const auto wrong = [&](std::string_view what) {
    return Error{ErrorCode::corrupt_file, fmt::format("{}: {}", where, what)};
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    return wrong("expected an object with dtype, shape and data_offsets in the header");
  }
  StoredArray array;
  array.name = name;
  std::vector<std::int64_t> offsets;
  if (!read_numbers(entry["shape"], kMaxDimensions, array.extents)) {
    return wrong("shape: expected a list of whole numbers, at most 16");
  }
  if (!read_numbers(entry["data_offsets"], 2, offsets) || offsets.size() != 2) {
    return wrong("data_offsets: expected two whole numbers");
  }
  if (offsets[0] > offsets[1] || offsets[1] > file.size() - data_offset) {
    return wrong(fmt::format("data_offsets: expected a range inside [0, {}], got [{}, {}]",
                             file.size() - data_offset, offsets[0], offsets[1]));
  }
  const std::string type = entry["dtype"].get<std::string>();
  const SafetensorsType* known = nullptr;
  for (const SafetensorsType& each : kTypes) {
    if (each.name == type) known = &each;
  }
  if (known == nullptr) {
    array.problem = fmt::format("type {}, expected BOOL, integers, F16, BF16, F32 or F64", type);
    return array;
  }
  array.dtype = known->dtype;
  array.offset = data_offset + offsets[0];
  FDMA_TRY(array.size_bytes, array_bytes(array.dtype, array.extents, where));
  if (array.size_bytes != offsets[1] - offsets[0]) {
    return wrong(fmt::format("data_offsets: expected {} bytes for {} [{}], got {}",
                             array.size_bytes, type, fmt::join(array.extents, ", "),
                             offsets[1] - offsets[0]));
  }
  return array;
}

}  // namespace

std::uint64_t safetensors_header_bytes(std::string_view front) {
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(front[i]);
  }
  return length;
}

bool is_safetensors_length(std::uint64_t header_bytes, std::int64_t file_bytes) {
  return header_bytes >= 2 && header_bytes <= kMaxHeaderBytes &&
         header_bytes <= static_cast<std::uint64_t>(file_bytes - kLengthBytes);
}

Result<std::vector<StoredArray>> read_safetensors_header(const InputBytes& file) {
  FDMA_TRY(const std::string front, file.text(0, kLengthBytes));
  const std::uint64_t length = safetensors_header_bytes(front);
  FDMA_TRY(const std::string text, file.text(kLengthBytes, static_cast<std::int64_t>(length)));
  Json header;
  try {
    header = Json::parse(text);
  } catch (const Json::parse_error& error) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("'{}': byte {}: expected a JSON object, the header of safetensors",
                             file.path(), kLengthBytes + static_cast<std::int64_t>(error.byte))};
  }
  if (!header.is_object()) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("'{}': byte {}: expected a JSON object, the header of safetensors",
                             file.path(), kLengthBytes)};
  }
  std::vector<StoredArray> arrays;
  const std::int64_t data_offset = kLengthBytes + static_cast<std::int64_t>(length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    FDMA_TRY(StoredArray array, read_tensor_entry(file, name, entry, data_offset));
    arrays.push_back(std::move(array));
  }
  return arrays;
}

}  // namespace fdma::io
