#include "cli/json_output.hpp"

#include "fdma/formats/hash.hpp"

namespace fdma::maskc {

Json mask_json(const std::string& name, const BlockMask& mask) {
  Json document;
  document["name"] = name;
  document["format"] = to_string(mask.format());
  document["lengths"] = {{"q", mask.shape.q_lens}, {"kv", mask.shape.kv_lens}};
  document["num_batches"] = mask.shape.num_batches;
  document["num_heads"] = mask.shape.num_heads;
  document["block"] = {{"q", mask.block.block_q}, {"kv", mask.block.block_kv}};
  document["origin"] = {{"q", mask.origin.q_offset},
                        {"kv", mask.origin.kv_offset},
                        {"batch", mask.origin.batch_offset},
                        {"head", mask.origin.head_offset}};
  document["spec"] = mask.spec.empty() ? Json(nullptr) : Json(mask.spec);
  document["num_groups"] = mask.num_groups();
  document["stored_bytes"] = mask.size_bytes();
  document["content_hash"] = to_string(content_hash(mask));
  return document;
}

Json failure_json(const CommandFailure& failure) {
  std::string argument = failure.argument;
  if (argument.empty() && failure.message.starts_with("--")) {
    argument =
        failure.message.substr(0, failure.message.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"));
  }
  Json document;
  document["code"] = to_string(failure.exit_code);
  document["exit_status"] = static_cast<int>(failure.exit_code);
  document["argument"] = argument.empty() ? Json(nullptr) : Json(argument);
  document["positions"] = Json::array();
  for (const SourcePosition& position : failure.positions) {
    document["positions"].push_back({{"source", position.source},
                                     {"line", position.line},
                                     {"column", position.column},
                                     {"message", position.message}});
  }
  document["message"] = failure.message;
  return document;
}

std::string json_text(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fdma::maskc
