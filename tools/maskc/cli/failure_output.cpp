#include "cli/failure_output.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cli/json_output.hpp"

namespace fdma::maskc {
namespace {

bool& tells_json() {
  static bool tells_json = false;
  return tells_json;
}

// Names read from a file may hold any bytes; a terminal must not execute control sequences in them.
std::string without_controls(std::string_view message) {
  std::string text;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text;
}

std::string json_line(std::string_view verb, const CommandFailure& failure) {
  Json error;
  error["verb"] = verb.empty() ? Json(nullptr) : Json(verb);
  error.update(failure_json(failure));
  Json document;
  document["error"] = std::move(error);
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void set_json_failures(bool is_json) { tells_json() = is_json; }

int report_failure(std::string_view verb, const CommandFailure& failure) {
  std::string text;
  if (tells_json()) {
    text = json_line(verb, failure);
  } else {
    text = fmt::format("fdma-maskc{}{}: error: {}", verb.empty() ? "" : " ", verb,
                       without_controls(failure.message));
    if (text.back() != '\n') text += '\n';
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
  return static_cast<int>(failure.exit_code);
}

}  // namespace fdma::maskc
