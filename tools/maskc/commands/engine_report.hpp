// explain and compile --explain: which engine lowers each program of a bound mask, and how.
#pragma once

#include <string>
#include <vector>

#include "cli/json_output.hpp"
#include "cli/outcome.hpp"
#include "fdma/masks/lower.hpp"

namespace fdma::maskc {

/// How one program of a MaskIr was lowered.
struct EngineReport {
  std::int64_t num_pairs = 0;  ///< (batch, head) pairs that share it
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t num_nodes = 0;
  std::int64_t num_tables = 0;
  ProgramReport lowering;
  std::int64_t result_bytes = 0;
  std::int64_t num_runs = 0;
  std::int64_t num_bitmaps = 0;
};

/// Lowers every program alone.
Outcome<std::vector<EngineReport>> explain_engines(const MaskIr& ir, const LowerOptions& options);

std::string to_text(const std::vector<EngineReport>& reports);
Json to_json(const EngineReport& report);

}  // namespace fdma::maskc
