// The header of a .npy array: "\x93NUMPY", two bytes of version, the length of a Python dictionary
// (two bytes, four from version 2 on), and the dictionary:
//
//     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "io/arrays/stored_array.hpp"

namespace fdma::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;

struct NpyType {
  std::string_view name;
  DType dtype;
};
constexpr NpyType kTypes[] = {
    {"b1", DType::boolean}, {"i1", DType::int8},    {"u1", DType::uint8},   {"i2", DType::int16},
    {"u2", DType::uint16},  {"i4", DType::int32},   {"u4", DType::uint32},  {"i8", DType::int64},
    {"u8", DType::uint64},  {"f2", DType::float16}, {"f4", DType::float32}, {"f8", DType::float64},
};

// A reader of the dictionary's few kinds of tokens.
class Dictionary {
 public:
  Dictionary(std::string_view text, std::string where, std::int64_t base)
      : text_(text), where_(std::move(where)), base_(base) {}

  Error wrong(std::string_view expected) const {
    return {ErrorCode::corrupt_file,
            fmt::format("{}: byte {}: expected {} in the header of a .npy array", where_,
                        base_ + static_cast<std::int64_t>(at_), expected)};
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::optional<std::string_view> quoted() {
    skip_blanks();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return {};
    const std::size_t close = text_.find(text_[at_], at_ + 1);
    if (close == std::string_view::npos) return {};
    const std::string_view inside = text_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    return inside;
  }
  std::optional<std::int64_t> number() {
    skip_blanks();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return {};
    at_ += static_cast<std::size_t>(end - begin);
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // long integers of Python 2
    return value;
  }
  bool at_end() {
    skip_blanks();
    return at_ == text_.size();
  }

 private:
  std::string_view text_;
  std::string where_;
  std::int64_t base_;
  std::size_t at_ = 0;
};

void set_type(std::string_view descr, NpyHeader& header) {
  const char order = descr.empty() ? ' ' : descr[0];
  if (order == '<' || order == '|' || order == '=' || order == '>') descr.remove_prefix(1);
  for (const NpyType& type : kTypes) {
    if (type.name != descr) continue;
    header.dtype = type.dtype;
    if (order == '>' && size_bytes(type.dtype) > 1) {
      header.problem = fmt::format("big-endian values; save x.astype('<{}')", descr);
    }
    return;
  }
  header.problem =
      fmt::format("type '{}', expected booleans, integers or floats of 1 to 8 bytes{}", descr,
                  descr == "V2" ? "; bfloat16 is kept by safetensors, or saved as "
                                  "float32"
                                : "");
}

Result<void> parse_value(Dictionary& dictionary, std::string_view key, NpyHeader& header) {
  if (key == "descr") {
    const auto descr = dictionary.quoted();
    if (!descr) {
      // The description of a record is a list, which may hold anything.
      header.problem = "an array of records; save one field of it";
      return Error{ErrorCode::unsupported, header.problem};
    }
    set_type(*descr, header);
    return {};
  }
  if (key == "fortran_order") {
    if (dictionary.take_word("True")) {
      header.problem = "fortran";
    } else if (!dictionary.take_word("False")) {
      return dictionary.wrong("True or False");
    }
    return {};
  }
  if (!dictionary.take('(')) return dictionary.wrong("a tuple of extents");
  while (!dictionary.take(')')) {
    const auto extent = dictionary.number();
    if (!extent) return dictionary.wrong("an extent");
    header.extents.push_back(*extent);
    if (!dictionary.take(',')) {
      if (!dictionary.take(')')) return dictionary.wrong("',' or ')'");
      break;
    }
  }
  return {};
}

}  // namespace

Result<std::int64_t> array_bytes(DType dtype, const std::vector<std::int64_t>& extents,
                                 const std::string& where) {
  std::int64_t bytes = size_bytes(dtype);
  for (const std::int64_t extent : extents) {
    if (extent == 0) return std::int64_t{0};
  }
  for (const std::int64_t extent : extents) {
    if (extent > kMaxBytes / bytes) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("{}: extents [{}] have more than 2^62 bytes", where,
                               fmt::join(extents, ", "))};
    }
    bytes *= extent;
  }
  return bytes;
}

Result<NpyHeader> parse_npy_header(std::string_view bytes, const std::string& where,
                                   std::int64_t base) {
  const auto corrupt = [&](std::size_t at, std::string_view expected) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("{}: byte {}: expected {}", where,
                             base + static_cast<std::int64_t>(at), expected)};
  };
  if (!bytes.starts_with(kMagic)) return corrupt(0, "the signature of a .npy array");
  if (bytes.size() < 10) return corrupt(bytes.size(), "the length of the header of a .npy array");
  const auto byte = [&](std::size_t i) {
    return std::size_t{static_cast<unsigned char>(bytes[i])};
  };
  const std::size_t version = byte(6);
  if (version < 1 || version > 3) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: byte {}: version {} of the .npy format, expected 1 to 3", where,
                             base + 6, version)};
  }
  std::size_t length = byte(8) | byte(9) << 8;
  std::size_t begin = 10;
  if (version > 1) {
    if (bytes.size() < 12) return corrupt(bytes.size(), "the length of the header");
    length |= byte(10) << 16 | byte(11) << 24;
    begin = 12;
  }
  if (length > static_cast<std::size_t>(kMaxNpyHeader) - 16 || begin + length > bytes.size()) {
    return corrupt(
        8, fmt::format("a header of at most {} bytes, got {}",
                       std::min<std::size_t>(kMaxNpyHeader - 16, bytes.size() - begin), length));
  }
  NpyHeader header;
  header.data_offset = static_cast<std::int64_t>(begin + length);
  Dictionary dictionary(bytes.substr(begin, length), where,
                        base + static_cast<std::int64_t>(begin));
  if (!dictionary.take('{')) return dictionary.wrong("'{'");
  bool is_fortran = false, has_shape = false, has_type = false;
  std::string type_problem;
  while (!dictionary.take('}')) {
    const auto key = dictionary.quoted();
    if (!key || (key != "descr" && key != "fortran_order" && key != "shape")) {
      return dictionary.wrong("'descr', 'fortran_order' or 'shape'");
    }
    if (!dictionary.take(':')) return dictionary.wrong("':'");
    header.problem.clear();
    const Result<void> parsed = parse_value(dictionary, *key, header);
    if (!parsed && parsed.error().code == ErrorCode::unsupported) {
      header.extents.clear();
      return header;
    }
    if (!parsed) return parsed.error();
    has_shape = has_shape || key == "shape";
    has_type = has_type || key == "descr";
    if (key == "descr") type_problem = header.problem;
    if (key == "fortran_order") is_fortran = !header.problem.empty();
    if (!dictionary.take(',') && !dictionary.take('}')) return dictionary.wrong("',' or '}'");
    if (dictionary.at_end()) break;
  }
  if (!has_shape || !has_type) return dictionary.wrong("'descr' and 'shape'");
  header.problem = type_problem;
  if (header.problem.empty() && is_fortran && header.extents.size() > 1) {
    header.problem = "Fortran order; save np.ascontiguousarray(x)";
  }
  return header;
}

}  // namespace fdma::io
