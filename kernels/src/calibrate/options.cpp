#include "calibrate/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace fdma {
namespace {

constexpr int kMaxThreads = 4096;

}  // namespace

Result<void> check_calibrate_options(const CalibrateOptions& options) {
  const auto invalid = [](std::string message) {
    return Error{ErrorCode::invalid_argument, std::move(message)};
  };
  if (options.directions.empty()) return invalid("directions: expected at least one, got none");
  for (const Direction direction : options.directions) {
    if (std::count(options.directions.begin(), options.directions.end(), direction) > 1) {
      return invalid(fmt::format("directions: {} is there twice", to_string(direction)));
    }
  }
  if (options.head_dims.empty()) return invalid("head_dims: expected at least one, got none");
  if (options.dtypes.empty()) return invalid("dtypes: expected at least one, got none");
  if (options.tiles.empty()) return invalid("tiles: expected at least one, got none");
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return invalid(
        fmt::format("num_threads: expected 0 to {}, got {}", kMaxThreads, options.num_threads));
  }
  for (const std::int32_t head_dim : options.head_dims) {
    if (head_dim < 1 || head_dim > kMaxHeadDim) {
      return invalid(fmt::format("head_dims: expected 1 to {}, got {}", kMaxHeadDim, head_dim));
    }
    if (std::count(options.head_dims.begin(), options.head_dims.end(), head_dim) > 1) {
      return invalid(fmt::format("head_dims: {} is there twice", head_dim));
    }
  }
  for (const DType dtype : options.dtypes) {
    if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16) {
      return invalid(
          fmt::format("dtypes: expected float32, float16 or bfloat16, got {}", to_string(dtype)));
    }
    if (std::count(options.dtypes.begin(), options.dtypes.end(), dtype) > 1) {
      return invalid(fmt::format("dtypes: {} is there twice", to_string(dtype)));
    }
  }
  for (const BlockShape tile : options.tiles) {
    FDMA_TRY_VOID(validate(tile));
    if (std::count(options.tiles.begin(), options.tiles.end(), tile) > 1) {
      return invalid(fmt::format("tiles: {}x{} is there twice", tile.block_q, tile.block_kv));
    }
  }
  return {};
}

}  // namespace fdma
