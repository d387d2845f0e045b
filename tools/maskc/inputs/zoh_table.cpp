#include "inputs/zoh_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "cli/file_reading.hpp"
#include "fdma/io/tensor_dataset.hpp"
#include "fdma/select/zoh_scores.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {
namespace {

constexpr std::string_view kOpening = "zoh(";
constexpr std::array<std::string_view, 3> kTensors{"values", "dt_proj", "a_coef"};
constexpr std::string_view kExpected =
    "zoh(values=FILE.h5:/DATASET, dt_proj=FILE.h5:/DATASET, a_coef=FILE.h5:/DATASET)";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

struct ZohCall {
  std::array<MaskAddress, 3> tensors;
  ZohMode mode = ZohMode::exp;
};

Outcome<ZohCall> parse_call(const std::string& name, std::string_view value) {
  const auto wrong = [&](const std::string& what) {
    return usage_failure(fmt::format("--table {}: {}", name, what));
  };
  value = trim(value);
  if (value.back() != ')') return wrong(fmt::format("expected {}, got '{}'", kExpected, value));
  std::string_view rest = value.substr(kOpening.size(), value.size() - kOpening.size() - 1);
  std::map<std::string_view, std::string_view> given;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view argument = trim(rest.substr(0, comma));
    const std::size_t equals = argument.find('=');
    const std::string_view key = trim(argument.substr(0, equals));
    const bool is_known =
        key == "mode" || std::find(kTensors.begin(), kTensors.end(), key) != kTensors.end();
    if (equals == std::string_view::npos || !is_known) {
      return wrong(fmt::format(
          "zoh takes values, dt_proj, a_coef and mode, each as name=value, got '{}'", argument));
    }
    if (!given.emplace(key, trim(argument.substr(equals + 1))).second) {
      return wrong(fmt::format("zoh: {} is given more than once", key));
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  ZohCall call;
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const auto found = given.find(kTensors[i]);
    if (found == given.end()) {
      return wrong(fmt::format("zoh: {} is missing; expected {}", kTensors[i], kExpected));
    }
    std::string address(found->second);
    if (i > 0 && !address.empty() && address.front() == '/' &&
        address.find(":/") == std::string::npos) {
      address.insert(0, call.tensors[0].file + ":");
    }
    call.tensors[i] = parse_address(address);
    if (call.tensors[i].file.empty() || call.tensors[i].inner.empty()) {
      return wrong(
          fmt::format("zoh: {}: expected FILE.h5:/DATASET, got '{}'", kTensors[i], found->second));
    }
  }
  if (const auto found = given.find("mode"); found != given.end()) {
    const std::optional<ZohMode> mode = parse_zoh_mode(found->second);
    if (!mode) return wrong(fmt::format("zoh: mode: expected exp or log, got '{}'", found->second));
    call.mode = *mode;
  }
  return call;
}

Outcome<OwnedTensor> read(const std::string& name, std::string_view argument,
                          const MaskAddress& address) {
  const auto named = [&](Error error) {
    error.message = fmt::format("--table {}: zoh: {}: {}", name, argument, error.message);
    return error;
  };
  const Result<TensorSpec> spec = describe_tensor_file(address.file, address.inner);
  if (!spec) return named(spec.error());
  Result<OwnedTensor> tensor = read_tensor_file(address.file, address.inner, *spec);
  if (!tensor) return named(tensor.error());
  return *std::move(tensor);
}

}  // namespace

bool is_zoh_call(std::string_view value) {
  return trim(value).substr(0, kOpening.size()) == kOpening;
}

Outcome<OwnedTable> zoh_table(const std::string& name, const std::string& value) {
  FDMA_TRY(const ZohCall call, parse_call(name, value));
  FDMA_TRY(const OwnedTensor values, read(name, kTensors[0], call.tensors[0]));
  FDMA_TRY(const OwnedTensor dt_proj, read(name, kTensors[1], call.tensors[1]));
  FDMA_TRY(const OwnedTensor a_coef, read(name, kTensors[2], call.tensors[2]));
  const auto named = [&](Error error) {
    error.message = fmt::format("--table {}: zoh: {}", name, error.message);
    return error;
  };
  const Result<ZohShape> shape = zoh_shape(values.view(), dt_proj.view(), a_coef.view());
  if (!shape) return named(shape.error());
  OwnedTable table;
  table.dtype = DType::float32;
  const std::int64_t extents[] = {shape->num_batches, shape->num_heads_kv, shape->kv_len};
  table.bytes.resize(static_cast<std::size_t>(extents[0] * extents[1] * extents[2]) *
                     sizeof(float));
  const Result<void> scored = zoh_scores(
      values.view(), dt_proj.view(), a_coef.view(),
      make_contiguous_mutable_view(table.bytes.data(), DType::float32, 3, extents), {call.mode});
  if (!scored) return named(scored.error());
  // Values with one batch element serve all batch elements of the mask.
  table.rank = shape->num_batches == 1 ? 2 : 3;
  const std::int64_t* first = extents + (3 - table.rank);
  std::copy(first, first + table.rank, table.extents);
  return table;
}

}  // namespace fdma::maskc
