#include "inputs/mask_operand.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "cli/file_reading.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/io/array_file.hpp"
#include "fdma/io/mask_file.hpp"
#include "inputs/file_listing.hpp"

namespace fdma::maskc {
namespace {

constexpr std::string_view kMasksPrefix = "/masks/";

struct DimsName {
  std::string_view name;
  DenseDims dims;
};
constexpr DimsName kDims[] = {{"qk", DenseDims::qk},
                              {"hqk", DenseDims::hqk},
                              {"bqk", DenseDims::bqk},
                              {"bhqk", DenseDims::bhqk},
                              {"bk", DenseDims::bk}};

// The file was named alone, but holds no mask of FDMA.
CommandFailure no_masks(ExitCode code, const std::string& file) {
  return {code, fmt::format("{}: holds no mask of FDMA; a dense dataset in it is named "
                            "{}:/DATASET{}",
                            file, file, file_listing(file, {}, Wanted::mask))};
}

// What was most likely meant by the name of a file that is not there: the same with a suffix, or a
// path that goes on inside a file.
std::string nearby_file(const std::string& file) {
  std::error_code error;
  if (std::filesystem::exists(file, error)) return {};
  for (const char* suffix : {".h5", ".hdf5", ".npy", ".npz", ".safetensors"}) {
    if (std::filesystem::is_regular_file(file + suffix, error)) return file + suffix;
  }
  for (std::size_t at = file.rfind('/'); at != std::string::npos && at > 0;
       at = file.rfind('/', at - 1)) {
    if (std::filesystem::is_regular_file(file.substr(0, at), error)) {
      return fmt::format("{}:{}", file.substr(0, at), file.substr(at));
    }
  }
  return {};
}

// A .npy, .npz or safetensors file holds no mask of FDMA. A single array needs no name.
Outcome<ResolvedAddress> resolve_array(ResolvedAddress resolved) {
  const auto& [file, inner] = resolved.address;
  resolved.is_dense = true;
  if (!inner.empty()) {
    resolved.dataset = (inner.front() == '/' ? "" : "/") + inner;
    return resolved;
  }
  FDMA_TRY(const FileContents contents, list_datasets_of_file(file));
  if (contents.datasets.size() != 1) {
    return usage_failure(fmt::format("{}: holds {}; name one{}", file,
                                     plural(std::ssize(contents.datasets), "array"),
                                     file_listing(file, {}, Wanted::mask)));
  }
  resolved.dataset = contents.datasets.front().path;
  return resolved;
}

}  // namespace

MaskAddress parse_address(const std::string& text) {
  std::error_code error;
  if (text.find(':') == std::string::npos) return {text, {}};
  if (std::filesystem::is_regular_file(text, error)) return {text, {}};
  for (std::size_t at = text.find(':'); at != std::string::npos; at = text.find(':', at + 1)) {
    if (std::filesystem::is_regular_file(text.substr(0, at), error)) {
      return {text.substr(0, at), text.substr(at + 1)};
    }
  }
  const std::size_t last = text.rfind(':');
  return {text.substr(0, last), text.substr(last + 1)};
}

std::vector<OptionSpec> dense_options() {
  return {
      {.name = "dims",
       .value = "DIMS",
       .help =
           "What the dimensions of a dense dataset are: query rows q, keys k, batch elements b, "
           "heads h. Needed for 3 dimensions; 2 default to qk, 4 to bhqk; bk is a padding mask, "
           "[batch, keys] or [batch, 1, 1, keys]. Needed, too, where the values could be either.",
       .choices = {"qk", "hqk", "bqk", "bhqk", "bk"}},
      {.name = "true-means",
       .value = "MEANING",
       .help = "What true (1) means in a boolean or integer dataset; the default is attend, "
               "PyTorch's MultiheadAttention has masked.",
       .choices = {"attend", "masked"}},
      {.name = "drop-below",
       .value = "X",
       .help = "Additive float datasets: values at or below X are masked (default -32752; 0 keeps, "
               "anything else is an error). Use -10000 for the -1e4 convention."},
      {.name = "ones-keep",
       .help = "Floating datasets of ones and zeros: 1 keeps, 0 masks, anything else is an error."},
      {.name = "rows",
       .value = "N",
       .help = "Query rows of a mask read with --dims bk (default: as many as keys)."},
  };
}

Status check_dense_options(const Arguments& arguments, bool has_dense_operand) {
  if (has_dense_operand) return Nothing{};
  for (const OptionSpec& option : dense_options()) {
    if (!arguments.has(option.name)) continue;
    return usage_failure(
        fmt::format("--{}: says how to read a dense dataset (FILE.h5:/PATH), but none is read here",
                    option.name));
  }
  return Nothing{};
}

Outcome<DenseReadOptions> dense_read_options(const Arguments& arguments) {
  DenseReadOptions options;
  if (const auto dims = arguments.find("dims")) {
    for (const DimsName& known : kDims) {
      if (known.name == *dims) options.dims = known.dims;
    }
  }
  options.true_means_attend = arguments.find("true-means").value_or("attend") == "attend";
  FDMA_TRY(options.drop_below, arguments.number("drop-below"));
  if (options.drop_below && !(*options.drop_below < 0)) {
    return usage_failure(fmt::format("--drop-below: expected a number below 0, got '{}'",
                                     *arguments.find("drop-below")));
  }
  options.ones_keep = arguments.has("ones-keep");
  FDMA_TRY(options.q_len, arguments.integer("rows", 0, 1, kMaxLength));
  FDMA_TRY(options.block, arguments.block({}));
  FDMA_TRY(const std::int64_t threads, arguments.threads());
  options.num_threads = static_cast<int>(threads);
  return options;
}

Outcome<ResolvedAddress> resolve_address(const std::string& text) {
  ResolvedAddress resolved;
  resolved.address = parse_address(text);
  const auto& [file, inner] = resolved.address;
  if (file.empty()) return usage_failure(fmt::format("'{}': expected FILE.h5[:NAME]", text));
  if (file == "-") {
    return usage_failure("'-': an HDF5 file cannot be read from a pipe; give a file name");
  }
  if (inner.rfind(kMasksPrefix, 0) == 0) {
    resolved.names = {inner.substr(kMasksPrefix.size())};
    return resolved;
  }
  if (inner.rfind(kMasksPrefix, 0) != 0 && is_array_file(file)) return resolve_array(resolved);
  if (inner.empty() || inner.front() != '/') {
    Result<std::vector<std::string>> listed =
        inner.empty() ? list_own_masks(file) : list_masks_of_any_file(file);
    // A file without masks may still hold the dataset. The later read reports any other error.
    if (const std::string meant = nearby_file(file); !meant.empty()) {
      return CommandFailure{ExitCode::file,
                            fmt::format("there is no file '{}'; did you mean {}?", file, meant)};
    }
    if (!listed && inner.empty() && list_datasets_of_file(file)) {
      return no_masks(ExitCode::file, file);
    }
    if (!listed && (inner.empty() || listed.error().code == ErrorCode::io)) return listed.error();
    if (inner.empty()) {
      if (listed->empty()) return no_masks(ExitCode::usage, file);
      resolved.names = *std::move(listed);
      return resolved;
    }
    if (listed && std::find(listed->begin(), listed->end(), inner) != listed->end()) {
      resolved.names = {inner};
      return resolved;
    }
  }
  resolved.is_dense = true;
  resolved.dataset = inner.front() == '/' ? inner : "/" + inner;
  return resolved;
}

std::string name_of(const ResolvedAddress& resolved) {
  return resolved.names.empty() ? "mask" : resolved.names.front();
}

namespace {

// Whether every row of the mask is its first keys or its last keys, as those of a padding mask are,
// and some row has more than one key more or less than the row before. A causal mask whose rows are
// not as many as its keys has one key more in each row.
bool looks_like_padding(const SegmentMask& mask) {
  std::vector<Interval> keys;
  std::int64_t num_before = 0;
  bool is_uneven = false;
  for (std::int64_t q = 0; q < mask.q_len; ++q) {
    row_intervals_of(mask, q, keys);
    if (keys.size() > 1) return false;
    if (keys.size() == 1 && keys[0].begin > 0 && keys[0].end < mask.kv_len) return false;
    const std::int64_t num_keys = keys.empty() ? 0 : keys[0].end - keys[0].begin;
    is_uneven |= q > 0 && std::abs(num_keys - num_before) > 1;
    num_before = num_keys;
  }
  return is_uneven;
}

// A dense dataset that was read by its default --dims is refused if it could be a padding mask.
Status check_reading(const MaskOperand& operand, const std::string& file,
                     const std::string& dataset) {
  const BlockMask& mask = operand.mask;
  const std::int64_t q_len = mask.shape.q_len(0), kv_len = mask.shape.kv_len(0);
  const auto refusal = [&](std::string_view extents, const std::string& as_rows,
                           std::int64_t batch) {
    return usage_failure(fmt::format(
        "{}: {} is {}, or a padding mask of {} with {}; say which: {}, or --dims bk "
        "(--rows N gives its query rows, as many as keys by default)",
        operand.label, extents, as_rows, plural(batch, "batch element"), plural(kv_len, "key"),
        mask.shape.num_batches > 1 ? "--dims bhqk" : "--dims qk"));
  };
  if (q_len == 0 || kv_len < 2 || q_len == kv_len || mask.shape.num_heads != 1) return Nothing{};
  const bool is_plane = mask.shape.num_batches == 1;
  if (is_plane ? !looks_like_padding(segment_of_group(mask, 0, mask.block)) : q_len != 1) {
    return Nothing{};
  }
  const Result<FileContents> contents = list_datasets_of_file(file);
  if (!contents) return Nothing{};
  const auto entry = std::find_if(contents->datasets.begin(), contents->datasets.end(),
                                  [&](const DatasetEntry& each) { return each.path == dataset; });
  if (entry == contents->datasets.end()) return Nothing{};
  const std::string extents = fmt::format("[{}]", fmt::join(entry->extents, ", "));
  if (entry->extents.size() == 2) {
    return refusal(extents, fmt::format("{} by keys", plural(q_len, "query row")), q_len);
  }
  if (entry->extents.size() == 4 && q_len == 1) {
    return refusal(extents, "one query row", mask.shape.num_batches);
  }
  return Nothing{};
}

}  // namespace

Outcome<MaskOperand> read_resolved(const ResolvedAddress& resolved, const DenseReadOptions& dense,
                                   bool quiet) {
  const std::string& file = resolved.address.file;
  MaskOperand operand;
  if (!resolved.is_dense) {
    if (resolved.names.size() != 1) {
      return usage_failure(fmt::format("{}: holds {} masks; name one: {}:{}", file,
                                       resolved.names.size(), file,
                                       fmt::join(resolved.names, fmt::format(", {}:", file))));
    }
    operand.name = resolved.names.front();
    operand.label = fmt::format("{}:{}{}", file, kMasksPrefix, operand.name);
    const Step step("reading " + operand.label);
    FDMA_TRY(operand.mask, read_own_mask(file, operand.name));
    spdlog::info("read {}", operand.label);
    return operand;
  }
  operand.is_dense = true;
  operand.name = name_of(resolved);
  operand.label = resolved.dataset == "/" ? file : fmt::format("{}:{}", file, resolved.dataset);
  DenseReadOptions options = dense;
  Progress progress("reading " + operand.label, "B", quiet);
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  // Interning, the handover from an isolated reader, and conversion each hold the result twice.
  options.max_result_bytes = available_memory_bytes() / 3;
  Result<BlockMask> mask = read_dense_file(file, resolved.dataset, options);
  if (!mask) {
    // A value that is no mask value makes the mask wrong; the message names its cell. Any other
    // invalid argument (the type of the dataset) is a usage error.
    if (mask.error().code == ErrorCode::invalid_argument &&
        mask.error().message.find(": cell (") != std::string::npos) {
      return CommandFailure{ExitCode::mask_wrong, mask.error().message};
    }
    return with_listing(mask.error(), file, resolved.dataset, Wanted::mask);
  }
  operand.mask = *std::move(mask);
  if (!dense.dims) FDMA_TRY_VOID(check_reading(operand, file, resolved.dataset));
  spdlog::info("read dense dataset {}", operand.label);
  return operand;
}

Outcome<MaskOperand> read_operand(const std::string& text, const DenseReadOptions& dense,
                                  bool quiet) {
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(text));
  return read_resolved(resolved, dense, quiet);
}

std::string lengths_text(const MaskShape& shape) {
  const auto range = [](const std::vector<std::int64_t>& lens) {
    const auto [low, high] = std::minmax_element(lens.begin(), lens.end());
    return *low == *high ? std::to_string(*low) : fmt::format("{}..{}", *low, *high);
  };
  return fmt::format("{} x {}", range(shape.q_lens), range(shape.kv_lens));
}

}  // namespace fdma::maskc
