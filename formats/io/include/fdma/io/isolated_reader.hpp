// Reading files of unknown origin in a process of their own, so that what HDF5 does when it meets a
// hostile one ends that process and not this (docs/threat-model.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "fdma/io/file_contents.hpp"
#include "fdma/io/interop_group.hpp"
#include "fdma/io/tensor_dataset.hpp"

namespace fdma {

/// To be called first in main: if this process was started to read for another one, reads until
/// that one is done and returns the exit code; otherwise returns nothing, at once, and from then on
/// an IsolatedReader of this process can start this program as its reading process.
///
/// Example     int main(int argc, char** argv) {
///               if (const auto code = fdma::serve_isolated_reads(argc, argv)) return *code;
std::optional<int> serve_isolated_reads(int argc, char** argv);

struct IsolationOptions {
  /// The program that reads, whose main calls serve_isolated_reads; empty: this one.
  std::string program;
  /// Memory that the reading process may take beyond what it has when it starts. 0: 1 GiB, 32 MiB
  /// for each hardware thread and what the file can hold, at most the machine's memory.
  std::int64_t memory_bytes = 0;
  /// CPU time without progress, in seconds, after which the reading process ends; one more for each
  /// 16 MiB of the file. Reading a dense mask makes progress with every panel.
  std::int64_t cpu_seconds = 60;
  /// Seconds that one call may take; 0: any.
  double max_seconds = 0;
  /// Different files that one reading process may read. What a hostile file did to a process can
  /// falsify what it reads afterwards; more than 1 is for tests.
  int files_per_process = 1;
  /// Standard error of the reading process goes to this one's instead of nowhere.
  bool shows_messages = false;
};

/// The read functions of fdma::io in a child process: same arguments, same results, same errors.
///
/// What comes back is checked as a file is: sizes before memory, then validate at level structure.
/// A child that crashes, runs out of its memory or makes no progress is an error (corrupt_file,
/// out_of_memory) that names the file and says what happened; callbacks run in this process. The
/// child ends with the thread that started it, writes no file and dumps no core.
///
/// Example     IsolatedReader reader; auto mask = reader.read_dense_mask("a.h5", "/mask");
/// Errors      as the functions of the same name; also unsupported (no program to start), io (the
///             system refuses, is_cancelled: "interrupted")
/// Cost        some 10 ms for a process per file, then the transfer of the result (GB/s); the
///             result is in memory once, not twice, while it moves
/// Threads     one call at a time
class IsolatedReader {
 public:
  explicit IsolatedReader(IsolationOptions options = {});
  IsolatedReader(IsolatedReader&&) noexcept;
  IsolatedReader& operator=(IsolatedReader&&) noexcept;
  ~IsolatedReader();

  Result<BlockMask> read_dense_mask(const std::string& path, const std::string& dataset,
                                    const DenseReadOptions& options = {});
  Result<OwnedTable> read_table(const std::string& path, const std::string& dataset);
  Result<PeerGroup> read_peer_group(const std::string& path, const std::string& group);
  Result<std::vector<std::string>> list_masks(const std::string& path);
  Result<BlockMask> read_mask(const std::string& path, const std::string& name = {});
  Result<bool> has_object(const std::string& path, const std::string& object);
  Result<TensorSpec> describe_tensor(const std::string& path, const std::string& dataset);
  Result<OwnedTensor> read_tensor(const std::string& path, const std::string& dataset,
                                  const TensorSpec& expected);
  Result<FileContents> list_datasets(const std::string& path);

  /// Reading processes that ended otherwise than by being told to.
  std::int64_t num_crashes() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace fdma
