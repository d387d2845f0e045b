// fdma-maskc calibrate: measures attention on this machine and writes a device profile.
#include "fdma/kernels/calibrate.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "cli/arguments.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/backends.hpp"
#include "inputs/destination.hpp"
#include "run/attention_input.hpp"

namespace fdma::maskc {
namespace {

/// A comma list of element types.
Outcome<std::vector<DType>> read_dtypes(const Arguments& arguments, std::vector<DType> fallback) {
  const auto text = arguments.find("dtype");
  if (!text) return fallback;
  std::vector<DType> dtypes;
  std::string_view rest = *text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const Result<DType> dtype = parse_attention_dtype(rest.substr(0, comma));
    if (!dtype) return usage_failure(fmt::format("--{}", dtype.error().message));
    dtypes.push_back(*dtype);
    if (comma == std::string_view::npos) return dtypes;
    rest.remove_prefix(comma + 1);
  }
}

Status write_text(const std::string& path, const std::string& text) {
  FDMA_TRY(PendingFile pending, open_destination(path));
  std::FILE* file = std::fopen(pending.temporary_path().c_str(), "wb");
  if (file == nullptr) {
    return CommandFailure{ExitCode::file, fmt::format("{}: cannot write", path)};
  }
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !is_written) {
    return CommandFailure{ExitCode::file, fmt::format("{}: cannot write", path)};
  }
  FDMA_TRY_VOID(pending.commit());
  return Nothing{};
}

/// The backend that --backend names. "auto" means the GPU if there is one.
Outcome<Backend> read_backend(const Arguments& arguments) {
  const std::string name = arguments.find("backend").value_or("cpu");
  Backend backend = default_backend();
  if (name != "auto") {
    FDMA_TRY(backend, parse_backend(name));
  }
  FDMA_TRY_VOID(check_backend(backend));
  return backend;
}

std::string summary(const DeviceProfile& profile, Backend backend, const std::string& path) {
  std::string text =
      fmt::format("{}: {}, {}/s of memory traffic\n", path, profile.source,
                  bytes_text(static_cast<std::int64_t>(profile.memory_bytes_per_us * 1e6)));
  for (const KernelCosts& kernel : profile.kernels) {
    const TileCosts& costs = kernel.tiles.front();
    const bool is_backward = kernel.direction == Direction::backward;
    const double flops =
        (is_backward ? 10.0 : 4.0) * kernel.head_dim * costs.tile.block_q * costs.tile.block_kv;
    text += fmt::format("  {}{:<9}{:>4}  {:.3g} us a full tile of {} x {}, {:.1f} GFLOP/s a {}\n",
                        is_backward ? "backward " : "", to_string(kernel.dtype), kernel.head_dim,
                        costs.full.compute_us, costs.tile.block_q, costs.tile.block_kv,
                        flops / costs.full.compute_us / 1e3, backend.traits().worker);
  }
  return text;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(const Backend backend, read_backend(arguments));
  CalibrateOptions options = calibrate_options(backend);
  if (arguments.has("head-dim")) {
    FDMA_TRY(const std::vector<std::int64_t> head_dims,
             arguments.integers("head-dim", 1, kMaxHeadDim));
    options.head_dims.assign(head_dims.begin(), head_dims.end());
  }
  const std::string direction = arguments.find("direction").value_or("forward");
  if (direction == "backward") options.directions = {Direction::backward};
  if (direction == "both") options.directions = {Direction::forward, Direction::backward};
  FDMA_TRY(options.dtypes, read_dtypes(arguments, options.dtypes));
  if (backend.traits().device != Device::cpu && arguments.has("threads")) {
    return usage_failure(
        fmt::format("--threads: only for --backend cpu, but {} is measured", to_string(backend)));
  }
  FDMA_TRY(const std::int64_t threads, arguments.integer("threads", 0, 1, 4096));
  options.num_threads = static_cast<int>(threads);
  options.quick = arguments.has("quick");
  const auto output = arguments.find("output");
  if (output && *output != "-") {
    FDMA_TRY_VOID(check_plain_destination(*output));
  }
  DeviceProfile profile;
  {
    Progress progress("calibrating", "kernels", session.quiet);
    options.progress = [&](int done, int total) { progress.update(done, total); };
    FDMA_TRY(profile, calibrate(options));
  }
  if (!output || *output == "-") {
    session.out = to_json(profile);
    return ExitCode::ok;
  }
  FDMA_TRY_VOID(write_text(*output, to_json(profile)));
  if (!session.quiet) session.out = summary(profile, backend, *output);
  return ExitCode::ok;
}

}  // namespace

const Command& calibrate_command() {
  static const Command command{
      .name = "calibrate",
      .summary = "measure this machine and write a device profile for estimate",
      .operands = "",
      .description =
          "Runs attention over synthetic masks on this machine and fits what a full tile, a "
          "partial "
          "tile of each kind, a gathered key, a work tile and a call cost. The result is a device "
          "profile in JSON (fdma-maskc help estimates), for fdma-maskc estimate --device FILE.\n"
          "\n"
          "On a CPU it takes about two seconds for each combination of element type, head size and "
          "tile shape (five shapes); a profile holds for the number of threads that it was "
          "measured with. On a GPU it takes five to ten seconds for each combination of direction, "
          "element type and head size. The machine should be idle.",
      .options = {{.name = "output",
                   .letter = 'o',
                   .value = "FILE",
                   .help = "Where to write the profile (default: standard output).",
                   .takes_file = true},
                  {.name = "backend",
                   .value = "NAME",
                   .help = "cpu (default), sm90 (the Hopper GPU here) or auto (the GPU if there is "
                           "one).",
                   .choices = backend_option().choices},
                  {.name = "direction",
                   .value = "NAME",
                   .help = "forward (default), backward or both: the passes to measure.",
                   .choices = {"forward", "backward", "both"}},
                  {.name = "head-dim",
                   .value = "LIST",
                   .help = "Head sizes (default 64,128); estimate interpolates between them."},
                  {.name = "dtype",
                   .value = "LIST",
                   .help =
                       "Element types, of fp32, fp16 and bf16 (default fp32,bf16; on a GPU bf16)."},
                  {.name = "threads",
                   .value = "N",
                   .help = "Threads of the CPU to use (default: all cores)."},
                  {.name = "quick",
                   .help = "Two tile shapes and fewer runs: a sixth of the time (on a GPU a "
                           "third), less exact."}},
      .examples = {{"fdma-maskc calibrate --quick --head-dim 64 --dtype fp32 -o here.json",
                    "A first look at this machine:"},
                   {"fdma-maskc calibrate --head-dim 64 --dtype fp32 --quick --threads 1",
                    "One thread, the profile on standard output:"},
                   {"fdma-maskc calibrate --head-dim 32 --dtype bf16,fp16 --quick --quiet -o "
                    "half.json",
                    "Other element types:"}},
      .run = run,
      .operands_are_files = false};
  return command;
}

}  // namespace fdma::maskc
