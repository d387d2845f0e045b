// What stored masks take on disk and in memory, in every format that can hold them, and the time
// to write and to read them back.
//
//   bench_compression <folder> <result.json> [<most tokens, default 131072>]
//
// The mask suite's masks, learned top-k among them, at 8192, 32768 and 131072 tokens. Dense bits at
// 131072 tokens are 2 GiB: only for the masks of kDenseToo. Files stay in the folder as
// <mask>-<tokens>-<format>.h5, where compression.py goes on with them.
//
// Times are CPU times of the process on one thread, the least of a few repetitions: the write ends
// on disk (fsync), whose waiting is not in it; the read includes validation and the content hash.
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/io/mask_file.hpp"
#include "mask_suite.hpp"
#include "program.hpp"

namespace {

using fdma::BlockMask;
using fdma::MaskFormat;

constexpr std::int64_t kLengths[] = {8192, 32768, 131072};
constexpr std::int64_t kLongest = 131072;
constexpr std::string_view kDenseToo[] = {"causal_document", "random_eviction", "zoh_topk"};
constexpr MaskFormat kFormats[] = {MaskFormat::parametric, MaskFormat::segment, MaskFormat::bitset,
                                   MaskFormat::bcsr,       MaskFormat::columns, MaskFormat::dense};
constexpr int kRepetitions = 5;
constexpr double kLongSeconds = 1.0;  // what takes longer is not repeated

/// The least CPU time of `work`, in microseconds.
template <class Work>
double least_us(Work&& work) {
  double least = 1e30;
  for (int i = 0; i < kRepetitions; ++i) {
    const double begin = fdma::cpu_seconds();
    work();
    least = std::min(least, fdma::cpu_seconds() - begin);
    if (least > kLongSeconds) break;
  }
  return 1e6 * least;
}

void measure(const std::string& name, std::int64_t tokens, const BlockMask& mask,
             const std::filesystem::path& folder, nlohmann::ordered_json& rows) {
  const fdma::MaskStatistics statistics = fdma::count(mask, mask.block);
  for (const MaskFormat format : kFormats) {
    const bool is_wanted =
        format != MaskFormat::dense || tokens < kLongest ||
        std::find(std::begin(kDenseToo), std::end(kDenseToo), name) != std::end(kDenseToo);
    if (!is_wanted) continue;
    auto converted = fdma::convert(mask, format, mask.block);
    if (!converted && format == MaskFormat::parametric) continue;  // no closed form
    std::vector<fdma::NamedMask> stored;
    stored.push_back({"mask", value_or_exit(std::move(converted), name)});
    const std::filesystem::path path = folder / (name + "-" + std::to_string(tokens) + "-" +
                                                 std::string(fdma::to_string(format)) + ".h5");
    const double write_us =
        least_us([&] { fdma::require(fdma::write_masks(path, stored), path.native()); });
    const double read_us = least_us([&] { value_or_exit(fdma::read_mask(path), path.native()); });
    rows.push_back(
        {{"mask", name},
         {"tokens", tokens},
         {"allowed_share", double(statistics.tiles.allowed_pairs) / double(statistics.total_pairs)},
         {"storage", fdma::to_string(format)},
         {"memory_bytes", stored.front().mask.size_bytes()},
         {"file_bytes", std::filesystem::file_size(path)},
         {"write_us", write_us},
         {"read_us", read_us}});
    std::cerr << name << " " << tokens << " " << fdma::to_string(format) << ": "
              << std::filesystem::file_size(path) << " B\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: bench_compression <folder> <result.json> [<most tokens>]\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const std::int64_t most_tokens = argc == 4 ? std::atoll(argv[3]) : kLongest;
  std::filesystem::create_directories(folder);
  const oneapi::tbb::global_control one_thread(oneapi::tbb::global_control::max_allowed_parallelism,
                                               1);
  nlohmann::ordered_json document;
  document["compiler"] = FDMA_COMPILER;
  document["rows"] = nlohmann::ordered_json::array();
  for (const std::int64_t tokens : kLengths) {
    if (tokens > most_tokens) continue;
    for (const fdma::suite::SuiteMask& mask : fdma::suite::mask_suite(tokens)) {
      measure(mask.name, tokens, fdma::compiled(mask), folder, document["rows"]);
    }
  }
  fdma::write_or_exit(argv[2], [&](std::ostream& out) { out << document.dump(1) << "\n"; });
  return 0;
}
