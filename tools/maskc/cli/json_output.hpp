// The JSON documents that --json prints (docs/json-schema.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma::maskc {

/// Members keep the order in which they are written.
using Json = nlohmann::ordered_json;

/// The value, or null where there is none.
template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// The members that every verb prints about a mask: name, format, lengths, counts, block, origin,
/// groups, spec, stored bytes, content hash.
Json mask_json(const std::string& name, const BlockMask& mask);

/// A failure as an object: code, exit_status, argument, positions, message.
Json failure_json(const CommandFailure& failure);

/// The document as text, with a line end.
std::string json_text(const Json& document);

}  // namespace fdma::maskc
