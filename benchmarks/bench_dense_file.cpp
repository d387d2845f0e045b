// How fast dense masks in HDF5 are read, beside what the machine's read path allows.
//
//   bench_dense_file <file.h5> <mask bytes> <rounds>
//
// Reads dataset /mask of one file: by read_dense_mask on one thread and on all, through HDF5 alone
// (reads_directly = false) on one thread, and the file itself by pread into buffers of 256 KiB and
// 1 MiB, in turns; of several rounds the fastest counts, since others may use the machine. One
// thread is measured by its CPU time, which is what a core needs; all threads by elapsed time.
// Prints one JSON object: bytes per second over the mask's bytes (over the file's for pread), and
// the heap's peak. The ordinary way is taken once, as it is slow; of masks above 4 GiB not at all.
// bench_dense_files.py makes the files and runs this.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "allocation_peak.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "program.hpp"

namespace {

constexpr std::size_t kBuffer = std::size_t{256} << 10;
constexpr std::size_t kLargeBuffer = std::size_t{1} << 20;
constexpr double kNever = std::numeric_limits<double>::infinity();

double elapsed_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Fastest {
  double cpu = kNever;
  double elapsed = kNever;
};

template <class Work>
void time(Fastest& fastest, Work work) {
  const double cpu = fdma::cpu_seconds(), elapsed = elapsed_seconds();
  work();
  fastest.cpu = std::min(fastest.cpu, fdma::cpu_seconds() - cpu);
  fastest.elapsed = std::min(fastest.elapsed, elapsed_seconds() - elapsed);
}

fdma::BlockMask read_or_exit(const std::string& path, int num_threads, bool reads_directly) {
  fdma::DenseReadOptions options;
  options.num_threads = num_threads;
  options.reads_directly = reads_directly;
  return fdma::value_or_exit(fdma::read_dense_mask(path, "/mask", options), path);
}

std::int64_t pread_whole(const std::string& path, std::size_t bytes) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // At the begin of a page: where it begins in one changes the rate by up to a third.
  constexpr std::size_t kPageBytes = 4096;
  static char* const buffer = static_cast<char*>(std::aligned_alloc(kPageBytes, kLargeBuffer));
  std::int64_t offset = 0;
  ssize_t count = 0;
  while ((count = pread(descriptor, buffer, bytes, offset)) > 0) offset += count;
  close(descriptor);
  return offset;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: bench_dense_file <file.h5> <mask bytes> <rounds>\n";
    return 2;
  }
  const std::string path = argv[1];
  const double bytes = std::atof(argv[2]);
  const int rounds = std::atoi(argv[3]);
  constexpr double kLarge = 4.0 * (1 << 30);
  const int all = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));

  Fastest limit, large_limit, one, many, ordinary;
  // The file is in the page cache from here on.
  std::int64_t file_bytes = pread_whole(path, kBuffer);
  const bool has_ordinary = bytes <= kLarge;
  for (int round = 0; round < rounds; ++round) {
    time(limit, [&] { file_bytes = pread_whole(path, kBuffer); });
    time(large_limit, [&] { file_bytes = pread_whole(path, kLargeBuffer); });
    time(one, [&] { read_or_exit(path, 1, true); });
    time(many, [&] { read_or_exit(path, all, true); });
  }
  if (has_ordinary) time(ordinary, [&] { read_or_exit(path, 1, false); });
  const fdma::AllocationPeak peak;
  const fdma::BlockMask mask = read_or_exit(path, all, true);
  std::cout << "{\"file_bytes\": " << file_bytes
            << ", \"limit\": " << static_cast<double>(file_bytes) / limit.cpu
            << ", \"large_limit\": " << static_cast<double>(file_bytes) / large_limit.cpu
            << ", \"one_thread\": " << bytes / one.cpu
            << ", \"all_threads\": " << bytes / many.elapsed << ", \"threads\": " << all
            << ", \"ordinary\": " << (has_ordinary ? bytes / ordinary.cpu : 0)
            << ", \"peak_bytes\": " << peak.bytes() << ", \"result_bytes\": " << mask.size_bytes()
            << ", \"compiler\": \"" << FDMA_COMPILER << "\"}\n";
  return 0;
}
