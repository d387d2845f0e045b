// Damaged and hostile files through the isolated reader: this process survives every one of them,
// and each gives a mask that is valid or an error with words.
//
// A few hundred files by default. The full run of docs/fuzzing.md:
//
//   FDMA_MUTATED_FILES=24000 FDMA_MUTATED_SEED=1 test_io --gtest_filter='MutatedFiles.*'
//
// FDMA_MUTATED_KEEP=FOLDER keeps the files that ended a reading process, FDMA_MUTATED_THREADS is 2.
// One process reads many files, which makes it fast, until a file ends it; that file is then read
// again by a process of its own, so that what an earlier file has left behind is told apart.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "fdma/formats/validate.hpp"
#include "fdma/io/isolated_reader.hpp"
#include "mask_fixtures.hpp"
#include "mutated_files.hpp"
#include "sanitizers.hpp"

namespace fdma {
namespace {

using testing::kMutations;
using testing::kNumMutations;
using testing::kSeedKinds;
using testing::Mutation;
using testing::SeedFile;
using testing::SeedKind;
using testing::TemporaryFolder;

std::int64_t setting(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : fallback;
}

// Counts how the reading of files ended.
struct Counts {
  std::int64_t files = 0;
  std::int64_t valid = 0;
  std::int64_t errors = 0;
  std::int64_t crashes = 0;        ///< the reading process ended, but for the two below
  std::int64_t crashes_alone = 0;  ///< of them: again when a new process read the file
  std::int64_t too_long = 0;
  std::int64_t too_large = 0;

  void add(const Counts& other) {
    files += other.files;
    valid += other.valid;
    errors += other.errors;
    crashes += other.crashes;
    crashes_alone += other.crashes_alone;
    too_long += other.too_long;
    too_large += other.too_large;
  }
};

void print_row(const char* name, const Counts& counts) {
  std::printf("%-18s %8lld %8lld %8lld %8lld %8lld %8lld %8lld\n", name,
              static_cast<long long>(counts.files), static_cast<long long>(counts.valid),
              static_cast<long long>(counts.errors), static_cast<long long>(counts.crashes),
              static_cast<long long>(counts.crashes_alone), static_cast<long long>(counts.too_long),
              static_cast<long long>(counts.too_large));
}

Result<BlockMask> read_interop(IsolatedReader& reader, const std::string& path, SeedKind kind) {
  FDMA_TRY(const InteropGroup group, reader.read_interop_group(path, "/mask"));
  if (kind == SeedKind::flex) {
    FDMA_TRY(const FlexBlockMask flex, flex_from_group(group));
    return block_mask_from_flex(flex);
  }
  if (kind == SeedKind::flash_mask) {
    FDMA_TRY(const FlashMask flash, flash_mask_from_group(group));
    return block_mask_from_flash_mask(flash);
  }
  FDMA_TRY(const BsrMatrix bsr, bsr_from_group(group));
  return block_mask_from_bsr(bsr);
}

Result<BlockMask> read(IsolatedReader& reader, const std::string& path, SeedKind kind) {
  if (kind == SeedKind::mask) return reader.read_mask(path);
  if (kind != SeedKind::dense) return read_interop(reader, path, kind);
  DenseReadOptions options;
  options.block = {16, 16};
  options.num_threads = 1;
  return reader.read_dense_mask(path, "/mask", options);
}

IsolationOptions isolation() {
  IsolationOptions options;
  options.memory_bytes = std::int64_t{512} << 20;
  options.cpu_seconds = 2;
  options.max_seconds = 3;
  options.files_per_process = 1000;
  return options;
}

// Reads the files with numbers first, first + step, ..
class Worker {
 public:
  Worker(const std::vector<SeedFile>& seeds, const TemporaryFolder& folder, std::int64_t first)
      : seeds_(seeds), path_(folder.file("worker" + std::to_string(first))), reader_(isolation()) {}

  void read_file(std::int64_t number, std::uint64_t seed) {
    std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(number));
    const SeedFile& file = seeds_[static_cast<std::size_t>(number) % seeds_.size()];
    const SeedFile& other = seeds_[random() % seeds_.size()];
    const auto mutation = static_cast<std::size_t>(number / std::ssize(seeds_)) % kNumMutations;
    const std::string path = path_ + "_" + std::to_string(number) + ".h5";
    testing::write_bytes(
        path, testing::mutated(file.bytes, other.bytes, static_cast<Mutation>(mutation), random));
    const Counts counts = outcome(path, file);
    std::remove(path.c_str());
    by_kind[static_cast<std::size_t>(file.kind)].add(counts);
    by_mutation[mutation].add(counts);
  }

  std::array<Counts, std::size(kSeedKinds)> by_kind{};
  std::array<Counts, kNumMutations> by_mutation{};
  std::int64_t unexplained = 0;  ///< ends that are neither a signal nor a limit

 private:
  Counts outcome(const std::string& path, const SeedFile& file) {
    Counts counts;
    counts.files = 1;
    const std::int64_t crashes = reader_.num_crashes();
    const Result<BlockMask> mask = read(reader_, path, file.kind);
    if (mask) {
      counts.valid = 1;
      const ValidationLevel level =
          file.kind == SeedKind::mask ? ValidationLevel::structure : ValidationLevel::canonical;
      EXPECT_TRUE(validate(*mask, level)) << file.name;
      return counts;
    }
    const std::string& message = mask.error().message;
    EXPECT_FALSE(message.empty());
    const auto says = [&](const char* text) { return message.find(text) != std::string::npos; };
    if (says("took longer than") || says("made no progress")) {
      counts.too_long = 1;
    } else if (mask.error().code == ErrorCode::out_of_memory) {
      counts.too_large = 1;
    } else if (reader_.num_crashes() > crashes) {
      counts.crashes = 1;
      if (!says("crashed the HDF5 library")) ++unexplained;
      IsolatedReader alone(isolation());
      const Result<BlockMask> again = read(alone, path, file.kind);
      counts.crashes_alone = alone.num_crashes();
      if (const char* keep = std::getenv("FDMA_MUTATED_KEEP"); keep != nullptr) {
        testing::write_bytes(std::string(keep) + path.substr(path.rfind('/')),
                             testing::read_bytes(path));
        std::printf("%s: %s\n", file.name.c_str(), message.c_str());
      }
    } else {
      counts.errors = 1;
    }
    return counts;
  }

  const std::vector<SeedFile>& seeds_;
  std::string path_;
  IsolatedReader reader_;
};

TEST(MutatedFiles, GiveAValidMaskOrAnError) {
  const std::int64_t num_files = setting("FDMA_MUTATED_FILES", 480);
  const std::int64_t num_threads = setting("FDMA_MUTATED_THREADS", 2);
  const auto seed = static_cast<std::uint64_t>(setting("FDMA_MUTATED_SEED", 1));
  const TemporaryFolder folder;
  const std::vector<SeedFile> seeds = testing::seed_files(folder.path());
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < num_threads; ++t) {
    Worker& worker = *workers.emplace_back(std::make_unique<Worker>(seeds, folder, t));
    threads.emplace_back([&worker, t, num_threads, num_files, seed] {
      for (std::int64_t i = t; i < num_files; i += num_threads) worker.read_file(i, seed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  Counts all;
  std::int64_t unexplained = 0;
  std::printf("%-18s %8s %8s %8s %8s %8s %8s %8s\n", "", "files", "valid", "errors", "crashes",
              "alone", "too long", "too large");
  for (std::size_t k = 0; k < std::size(kSeedKinds); ++k) {
    Counts counts;
    for (const auto& worker : workers) counts.add(worker->by_kind[k]);
    print_row(kSeedKinds[k], counts);
    all.add(counts);
  }
  for (std::size_t m = 0; m < kNumMutations; ++m) {
    Counts counts;
    for (const auto& worker : workers) counts.add(worker->by_mutation[m]);
    print_row(kMutations[m], counts);
  }
  for (const auto& worker : workers) unexplained += worker->unexplained;
  print_row("all", all);
  std::printf("%.1f s\n", elapsed.count());
  EXPECT_EQ(all.files, num_files);
  EXPECT_EQ(all.valid + all.errors + all.crashes + all.too_long + all.too_large, num_files);
  EXPECT_TRUE(unexplained == 0 || testing::kHasAddressSanitizer) << unexplained;
}

TEST(MutatedFiles, SeedsAreRead) {
  const TemporaryFolder folder;
  const std::string path = folder.file("seed.h5");
  IsolatedReader reader;
  for (const SeedFile& seed : testing::seed_files(folder.path())) {
    testing::write_bytes(path, seed.bytes);
    const auto mask = read(reader, path, seed.kind);
    EXPECT_TRUE(mask) << kSeedKinds[static_cast<std::size_t>(seed.kind)] << ", " << seed.name
                      << ": " << mask.error().message;
  }
}

}  // namespace
}  // namespace fdma
