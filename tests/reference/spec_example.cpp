#include "spec_example.hpp"

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace fdma::reference {
namespace {

// Reads the settings of one example: `name = value`, separated by commas or line ends.
class SettingsReader {
 public:
  SettingsReader(std::string_view text, SpecExample& example) : text_(text), example_(example) {}

  bool read() {
    for (skip(", \n"); position_ < text_.size(); skip(", \n"))
      if (!read_setting()) return false;
    return true;
  }

 private:
  void skip(const char* characters) {
    while (position_ < text_.size() && std::strchr(characters, text_[position_]) != nullptr)
      ++position_;
  }
  bool accept(std::string_view wanted) {
    skip(" \n");
    if (!text_.substr(position_).starts_with(wanted)) return false;
    position_ += wanted.size();
    return true;
  }
  std::string word() {
    const std::size_t begin = position_;
    while (position_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[position_])) || text_[position_] == '_'))
      ++position_;
    return std::string(text_.substr(begin, position_ - begin));
  }

  // Reads a number or nested lists. The extents are those of the first list at each depth.
  bool read_value(std::size_t depth) {
    if (accept("[")) {
      if (extents_.size() <= depth) extents_.push_back(-1);
      std::int64_t count = 0;
      if (!accept("]")) {
        do {
          if (!read_value(depth + 1)) return false;
          ++count;
        } while (accept(","));
        if (!accept("]")) return false;
      }
      if (extents_[depth] >= 0 && extents_[depth] != count) return false;
      extents_[depth] = count;
      return true;
    }
    const std::string number(text_.substr(position_, 24));
    char* end = nullptr;
    if (dtype_ == DType::float32) {
      const float value = std::strtof(number.c_str(), &end);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      values_.push_back(bits);
    } else {
      values_.push_back(std::strtoll(number.c_str(), &end, 10));
    }
    position_ += static_cast<std::size_t>(end - number.c_str());
    return end != number.c_str();
  }

  bool read_setting() {
    const bool is_table = accept("@");
    const std::string name = word();
    if (name.empty() || !accept("=")) return false;
    extents_.clear();
    values_.clear();
    dtype_ = accept("bool") ? DType::boolean : accept("float") ? DType::float32 : DType::int32;
    skip(" ");
    if (!read_value(0)) return false;
    MaskShape& shape = example_.shape;
    if (is_table)
      example_.tables.add(name, dtype_, extents_, values_);
    else if (name == "q_len")
      shape.q_lens = values_;
    else if (name == "kv_len")
      shape.kv_lens = values_;
    else if (name == "batch")
      shape.num_batches = values_.at(0);
    else if (name == "heads")
      shape.num_heads = values_.at(0);
    else
      return false;
    return true;
  }

  std::string_view text_;
  SpecExample& example_;
  std::size_t position_ = 0;
  DType dtype_ = DType::int32;
  std::vector<std::int64_t> extents_;
  std::vector<std::int64_t> values_;
};

}  // namespace

Result<std::vector<SpecExample>> read_spec_examples(std::string_view page) {
  constexpr std::string_view kOpen = "```mask\n", kClose = "\n```";
  std::vector<SpecExample> examples;
  for (std::size_t open = page.find(kOpen); open != std::string_view::npos;
       open = page.find(kOpen, open + 1)) {
    SpecExample example;
    example.line = 1;
    for (const char c : page.substr(0, open)) example.line += c == '\n';
    const auto bad = [&](const char* what) {
      return Error{ErrorCode::invalid_argument,
                   "example at line " + std::to_string(example.line) + ": " + what};
    };
    const std::size_t begin = open + kOpen.size();
    const std::size_t end = page.find(kClose, begin);
    if (end == std::string_view::npos) return bad("not closed");
    const std::string_view block = page.substr(begin, end - begin);
    const std::size_t first = block.find("\n\n");
    if (first == std::string_view::npos) return bad("needs a blank line after the specification");
    const std::size_t second = block.find("\n\n", first + 2);
    if (second == std::string_view::npos) return bad("needs a blank line after the settings");
    example.spec = std::string(block.substr(0, first));
    example.expected = std::string(block.substr(second + 2));
    example.expected_begin = begin + second + 2;
    example.expected_end = end;
    if (!SettingsReader(block.substr(first + 2, second - first - 2), example).read())
      return bad("malformed settings");
    if (example.shape.q_lens.empty() || example.shape.kv_lens.empty())
      return bad("needs q_len and kv_len");
    examples.push_back(std::move(example));
  }
  return examples;
}

std::string draw_cells(const std::vector<std::uint8_t>& cells, std::int64_t q_len,
                       std::int64_t kv_len) {
  std::string drawing;
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < kv_len; ++k)
      drawing += "01?"[cells[static_cast<std::size_t>(q * kv_len + k)]];
    drawing += '\n';
  }
  return drawing;
}

}  // namespace fdma::reference
