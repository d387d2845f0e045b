#include "io/arrays/zip_directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace fdma::io {
namespace {

constexpr std::string_view kEndRecord("PK\x05\x06", 4);
constexpr std::string_view kEndRecord64("PK\x06\x06", 4);
constexpr std::string_view kEndLocator64("PK\x06\x07", 4);
constexpr std::string_view kEntry("PK\x01\x02", 4);
constexpr std::string_view kLocal("PK\x03\x04", 4);
constexpr std::int64_t kEndBytes = 22, kLocator64Bytes = 20, kEnd64Bytes = 56;
constexpr std::int64_t kEntryBytes = 46, kLocalBytes = 30;
constexpr std::int64_t kMaxComment = 0xFFFF;
constexpr std::int64_t kMaxDirectoryBytes = std::int64_t{64} << 20;
constexpr std::uint64_t kIn64 = 0xFFFFFFFF;  // the number stands in a zip64 field
constexpr std::int64_t kMaxCompression = 1040;

std::uint64_t number(std::string_view bytes, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = count; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
  }
  return value;
}

Error corrupt(const InputBytes& file, std::int64_t at, std::string_view expected) {
  return {ErrorCode::corrupt_file,
          fmt::format("'{}': byte {}: expected {} of a zip archive", file.path(), at, expected)};
}

struct DirectoryPlace {
  std::int64_t offset = 0, bytes = 0;
};

Result<DirectoryPlace> find_directory(const InputBytes& file) {
  const std::int64_t tail = std::min(file.size(), kEndBytes + kMaxComment);
  const std::int64_t begin = file.size() - tail;
  FDMA_TRY(const std::string bytes, file.text(begin, tail));
  const std::size_t at = bytes.rfind(kEndRecord);
  if (at == std::string::npos || bytes.size() - at < static_cast<std::size_t>(kEndBytes)) {
    return corrupt(file, file.size(), "the end record before here");
  }
  std::uint64_t directory_bytes = number(bytes, at + 12, 4);
  std::uint64_t offset = number(bytes, at + 16, 4);
  const std::int64_t record = begin + static_cast<std::int64_t>(at);
  const std::int64_t locator = record - kLocator64Bytes;
  if ((offset == kIn64 || directory_bytes == kIn64) && locator >= 0) {
    FDMA_TRY(const std::string locator_bytes, file.text(locator, kLocator64Bytes));
    if (!locator_bytes.starts_with(kEndLocator64)) {
      return corrupt(file, locator, "the zip64 locator");
    }
    const std::uint64_t place = number(locator_bytes, 8, 8);
    if (place > static_cast<std::uint64_t>(file.size())) {
      return corrupt(file, locator + 8, "the place of the zip64 end record");
    }
    FDMA_TRY(const std::string end, file.text(static_cast<std::int64_t>(place), kEnd64Bytes));
    if (!end.starts_with(kEndRecord64) || end.size() < static_cast<std::size_t>(kEnd64Bytes)) {
      return corrupt(file, static_cast<std::int64_t>(place), "the zip64 end record");
    }
    directory_bytes = number(end, 40, 8);
    offset = number(end, 48, 8);
  }
  const auto size = static_cast<std::uint64_t>(file.size());
  if (offset > size || directory_bytes > size - offset) {
    return corrupt(file, record, "a directory inside the file");
  }
  if (directory_bytes > static_cast<std::uint64_t>(kMaxDirectoryBytes)) {
    return Error{ErrorCode::unsupported,
                 fmt::format("'{}': its zip directory has {} bytes, at most {} are read",
                             file.path(), directory_bytes, kMaxDirectoryBytes)};
  }
  return DirectoryPlace{static_cast<std::int64_t>(offset),
                        static_cast<std::int64_t>(directory_bytes)};
}

// Replaces the numbers that stand in the zip64 field of an entry, in the order that the format has.
bool read_zip64(std::string_view extra, std::uint64_t& inflated, std::uint64_t& stored,
                std::uint64_t& offset) {
  while (extra.size() >= 4) {
    const auto id = number(extra, 0, 2);
    const auto size = static_cast<std::size_t>(number(extra, 2, 2));
    if (size > extra.size() - 4) return false;
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (std::uint64_t* value : {&inflated, &stored, &offset}) {
      if (*value != kIn64) continue;
      if (field.size() < 8) return false;
      *value = number(field, 0, 8);
      field.remove_prefix(8);
    }
  }
  return true;
}

}  // namespace

Result<std::vector<ZipMember>> read_zip_directory(const InputBytes& file) {
  FDMA_TRY(const DirectoryPlace place, find_directory(file));
  FDMA_TRY(const std::string bytes, file.text(place.offset, place.bytes));
  std::vector<ZipMember> members;
  const auto size = static_cast<std::uint64_t>(file.size());
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::string_view entry = std::string_view(bytes).substr(at);
    const std::int64_t where = place.offset + static_cast<std::int64_t>(at);
    if (!entry.starts_with(kEntry) || entry.size() < static_cast<std::size_t>(kEntryBytes)) {
      return corrupt(file, where, "an entry of the directory");
    }
    const auto name_bytes = static_cast<std::size_t>(number(entry, 28, 2));
    const auto extra_bytes = static_cast<std::size_t>(number(entry, 30, 2));
    const auto comment_bytes = static_cast<std::size_t>(number(entry, 32, 2));
    const std::size_t whole = kEntryBytes + name_bytes + extra_bytes + comment_bytes;
    if (whole > entry.size()) return corrupt(file, where + 28, "the name of an entry");
    ZipMember member;
    member.name = entry.substr(kEntryBytes, name_bytes);
    std::uint64_t stored = number(entry, 20, 4), inflated = number(entry, 24, 4);
    std::uint64_t offset = number(entry, 42, 4);
    if (!read_zip64(entry.substr(kEntryBytes + name_bytes, extra_bytes), inflated, stored,
                    offset)) {
      return corrupt(file, where, "the zip64 field of an entry");
    }
    const auto flags = number(entry, 8, 2), method = number(entry, 10, 2);
    if ((flags & 1) != 0 || (method != 0 && method != 8)) {
      return Error{ErrorCode::unsupported,
                   fmt::format("'{}': member '{}' is {}; numpy.savez and savez_compressed write "
                               "stored and deflated ones",
                               file.path(), member.name,
                               (flags & 1) != 0 ? "encrypted"
                                                : fmt::format("compressed by method {}", method))};
    }
    member.is_deflated = method == 8;
    member.checksum = static_cast<std::uint32_t>(number(entry, 16, 4));
    if (offset > size || stored > size - offset) {
      return corrupt(file, where + 42, "a member inside the file");
    }
    FDMA_TRY(const std::string local, file.text(static_cast<std::int64_t>(offset), kLocalBytes));
    if (!local.starts_with(kLocal) || local.size() < static_cast<std::size_t>(kLocalBytes)) {
      return corrupt(file, static_cast<std::int64_t>(offset), "the header of a member");
    }
    offset += kLocalBytes + number(local, 26, 2) + number(local, 28, 2);
    if (offset > size || stored > size - offset) {
      return corrupt(file, static_cast<std::int64_t>(offset), "a member inside the file");
    }
    if (member.is_deflated ? inflated / kMaxCompression > stored : inflated != stored) {
      return corrupt(file, where + 20, "possible sizes of a member");
    }
    member.offset = static_cast<std::int64_t>(offset);
    member.stored_bytes = static_cast<std::int64_t>(stored);
    member.inflated_bytes = static_cast<std::int64_t>(inflated);
    members.push_back(std::move(member));
    at += whole;
  }
  return members;
}

}  // namespace fdma::io
