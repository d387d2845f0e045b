#include "io/arrays/array_file.hpp"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "fdma/io/array_file.hpp"
#include "io/arrays/safetensors_header.hpp"
#include "io/arrays/zip_directory.hpp"

namespace fdma::io {
namespace {

constexpr std::string_view kNpySignature = "\x93NUMPY";
constexpr std::string_view kZipSignature("PK\x03\x04", 4);
constexpr std::string_view kEmptyZipSignature("PK\x05\x06", 4);
constexpr std::int64_t kSniffedBytes = 9;

std::optional<ArrayFileKind> kind_of(std::string_view first, std::int64_t file_bytes) {
  if (first.starts_with(kNpySignature)) return ArrayFileKind::npy;
  if (first.starts_with(kZipSignature) || first.starts_with(kEmptyZipSignature)) {
    return ArrayFileKind::npz;
  }
  if (first.size() == static_cast<std::size_t>(kSniffedBytes) && first.back() == '{' &&
      is_safetensors_length(safetensors_header_bytes(first), file_bytes)) {
    return ArrayFileKind::safetensors;
  }
  return std::nullopt;
}

Error out_of_memory(const std::string& path) {
  return {ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
}

}  // namespace

std::optional<ArrayFileKind> array_file_kind(const std::string& path) {
  const Result<InputBytes> file = InputBytes::open(path);
  if (!file) return std::nullopt;
  const Result<std::string> first = file->text(0, kSniffedBytes);
  return first ? kind_of(*first, file->size()) : std::nullopt;
}

Result<ArrayFile> ArrayFile::open(const std::string& path) {
  FDMA_TRY(InputBytes bytes, InputBytes::open(path));
  FDMA_TRY(const std::string first, bytes.text(0, kSniffedBytes));
  const auto kind = kind_of(first, bytes.size());
  if (!kind) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("'{}': byte 0: expected a .npy, .npz or safetensors file", path)};
  }
  ArrayFile file(std::move(bytes));
  file.kind_ = *kind;
  switch (*kind) {
    case ArrayFileKind::npy:
      FDMA_TRY_VOID(file.open_npy());
      break;
    case ArrayFileKind::npz:
      FDMA_TRY_VOID(file.open_npz());
      break;
    case ArrayFileKind::safetensors:
      FDMA_TRY_VOID(file.open_safetensors());
      break;
  }
  std::sort(file.arrays_.begin(), file.arrays_.end(),
            [](const StoredArray& a, const StoredArray& b) { return a.name < b.name; });
  return file;
}

Result<void> ArrayFile::open_npy() {
  const std::string where = fmt::format("'{}'", path());
  FDMA_TRY(const std::string front, bytes_.text(0, kMaxNpyHeader));
  FDMA_TRY(NpyHeader header, parse_npy_header(front, where, 0));
  StoredArray array;
  array.problem = std::move(header.problem);
  array.dtype = header.dtype;
  array.extents = std::move(header.extents);
  array.offset = header.data_offset;
  FDMA_TRY(array.size_bytes, array_bytes(array.dtype, array.extents, where));
  if (array.problem.empty() && array.size_bytes > bytes_.size() - array.offset) {
    return Error{
        ErrorCode::corrupt_file,
        fmt::format("{}: byte {}: expected {} bytes of values from here, but the file ends "
                    "at {}",
                    where, array.offset, array.size_bytes, bytes_.size())};
  }
  arrays_.push_back(std::move(array));
  return {};
}

Result<void> ArrayFile::open_npz() {
  FDMA_TRY(const std::vector<ZipMember> members, read_zip_directory(bytes_));
  for (const ZipMember& member : members) {
    StoredArray array;
    array.name = member.name;
    if (array.name.ends_with(".npy")) array.name.resize(array.name.size() - 4);
    array.is_deflated = member.is_deflated;
    array.stored_offset = member.offset;
    array.stored_bytes = member.stored_bytes;
    array.inflated_bytes = member.inflated_bytes;
    array.checksum = member.checksum;
    std::string front;
    if (member.is_deflated) {
      FDMA_TRY(const std::vector<std::byte> inflated, inflate(array));
      front.assign(reinterpret_cast<const char*>(inflated.data()),
                   std::min(inflated.size(), static_cast<std::size_t>(kMaxNpyHeader)));
    } else {
      FDMA_TRY(front, bytes_.text(member.offset, std::min(kMaxNpyHeader, member.stored_bytes)));
    }
    const std::string where = fmt::format("'{}:/{}'", path(), array.name);
    const Result<NpyHeader> header =
        parse_npy_header(front, where, member.is_deflated ? 0 : member.offset);
    if (!header) {
      array.problem = header.error().message;
      arrays_.push_back(std::move(array));
      continue;
    }
    array.problem = header->problem;
    array.dtype = header->dtype;
    array.extents = header->extents;
    array.offset = header->data_offset + (member.is_deflated ? 0 : member.offset);
    FDMA_TRY(array.size_bytes, array_bytes(array.dtype, array.extents, where));
    if (array.problem.empty() && array.size_bytes > member.inflated_bytes - header->data_offset) {
      array.problem = fmt::format("extents of {} bytes, but the member has {}", array.size_bytes,
                                  member.inflated_bytes - header->data_offset);
    }
    arrays_.push_back(std::move(array));
  }
  return {};
}

Result<void> ArrayFile::open_safetensors() {
  FDMA_TRY(arrays_, read_safetensors_header(bytes_));
  return {};
}

Result<const StoredArray*> ArrayFile::find(std::string_view name) const {
  const std::string_view plain = name.starts_with('/') ? name.substr(1) : name;
  const StoredArray* found = nullptr;
  if (plain.empty() && arrays_.size() == 1) found = &arrays_.front();
  for (const StoredArray& array : arrays_) {
    if (array.name == plain && !plain.empty()) found = &array;
  }
  if (found == nullptr) {
    return Error{
        ErrorCode::io,
        plain.empty()
            ? fmt::format("'{}' holds {} arrays; name one, {}:NAME", path(), arrays_.size(), path())
            : fmt::format("'{}:{}': no object '{}' in the file", path(), name, name)};
  }
  if (!found->problem.empty()) {
    return Error{ErrorCode::invalid_argument,
                 found->name.empty()
                     ? fmt::format("'{}': {}", path(), found->problem)
                     : fmt::format("'{}:/{}': {}", path(), found->name, found->problem)};
  }
  return found;
}

Result<void> ArrayFile::read(const StoredArray& array, std::int64_t begin, std::int64_t count,
                             void* out) const {
  return bytes_.read(array.offset + begin, count, out);
}

Result<std::vector<std::byte>> ArrayFile::inflate(const StoredArray& array) const {
  struct Free {
    void operator()(libdeflate_decompressor* decompressor) const {
      libdeflate_free_decompressor(decompressor);
    }
  };
  const auto corrupt = [&](std::string_view what) {
    return Error{ErrorCode::corrupt_file, fmt::format("'{}:/{}': byte {}: the member {}", path(),
                                                      array.name, array.stored_offset, what)};
  };
  const std::unique_ptr<libdeflate_decompressor, Free> decompressor(
      libdeflate_alloc_decompressor());
  if (!decompressor) return out_of_memory(path());
  std::vector<std::byte> stored(static_cast<std::size_t>(array.stored_bytes));
  FDMA_TRY_VOID(bytes_.read(array.stored_offset, array.stored_bytes, stored.data()));
  std::vector<std::byte> inflated(static_cast<std::size_t>(array.inflated_bytes));
  std::size_t made = 0;
  const libdeflate_result result = libdeflate_deflate_decompress(
      decompressor.get(), stored.data(), stored.size(), inflated.data(), inflated.size(), &made);
  if (result != LIBDEFLATE_SUCCESS) return corrupt("cannot be inflated (deflate)");
  if (made != inflated.size()) {
    return corrupt(fmt::format("inflates to {} bytes, expected {}", made, inflated.size()));
  }
  if (libdeflate_crc32(0, inflated.data(), inflated.size()) != array.checksum) {
    return corrupt("does not match its checksum (CRC-32)");
  }
  return inflated;
}

Result<std::vector<std::byte>> ArrayFile::read_all(const StoredArray& array) const {
  if (array.is_deflated) {
    FDMA_TRY(std::vector<std::byte> inflated, inflate(array));
    inflated.erase(inflated.begin(), inflated.begin() + array.offset);
    inflated.resize(static_cast<std::size_t>(array.size_bytes));
    return inflated;
  }
  std::vector<std::byte> values(static_cast<std::size_t>(array.size_bytes));
  FDMA_TRY_VOID(read(array, 0, array.size_bytes, values.data()));
  return values;
}

}  // namespace fdma::io

namespace fdma {

bool is_array_file(const std::string& path) { return io::array_file_kind(path).has_value(); }

}  // namespace fdma
