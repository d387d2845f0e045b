// Reading files of unknown origin in a child process. A hostile file that breaks HDF5 then ends the
// child and not this process (docs/threat-model.md).
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

/// Must be called first in main. If another process started this one to read for it, the call reads
/// until the other process is done and returns the exit code. Otherwise it returns nothing, at
/// once, and an IsolatedReader of this process can from then on start this program as its child.
///
/// Example     int main(int argc, char** argv) {
///               if (const auto code = fdma::serve_isolated_reads(argc, argv)) return *code;
std::optional<int> serve_isolated_reads(int argc, char** argv);

struct IsolationOptions {
  /// The program that reads; its main calls serve_isolated_reads. Empty: this program.
  std::string program;
  /// Memory that the child may take beyond what it has when it starts. 0: 1 GiB, plus 32 MiB for
  /// each hardware thread, plus what the file can hold, at most the machine's memory.
  std::int64_t memory_bytes = 0;
  /// CPU time without progress, in seconds, after which the child ends; one second more for each
  /// 16 MiB of the file. Reading a dense mask makes progress with every panel.
  std::int64_t cpu_seconds = 60;
  /// Seconds that one call may take; 0: no limit.
  double max_seconds = 0;
  /// Different files that one child may read. A hostile file can change the child such that later
  /// results are false; more than 1 is for tests.
  int files_per_process = 1;
  /// The child's standard error goes to that of this process instead of nowhere.
  bool shows_messages = false;
};

/// The read functions of fdma::io in a child process, with the same arguments, results and errors.
///
/// Data from the child is checked as a file is: sizes before memory is taken, then validate at
/// level structure. A child that crashes, runs out of its memory or makes no progress is an error
/// (corrupt_file, out_of_memory) that names the file and says what happened. Callbacks run in this
/// process. The child ends with the thread that started it, writes no file and dumps no core.
///
/// Example     IsolatedReader reader; auto mask = reader.read_dense_mask("a.h5", "/mask");
/// Errors      those of the functions of the same name; also unsupported (no program to start), io
///             (the system refuses; is_cancelled: "interrupted")
/// Cost        some 10 ms for a process per file, then the transfer of the result (GB/s); the
///             result is never in memory twice
/// Threads     one call at a time
class IsolatedReader {
 public:
  explicit IsolatedReader(IsolationOptions options = {});
  IsolatedReader(IsolatedReader&&) noexcept;
  IsolatedReader& operator=(IsolatedReader&&) noexcept;
  ~IsolatedReader();

  Result<BlockMask> read_dense_mask(const std::string& path, const std::string& dataset,
                                    const DenseReadOptions& options = {});
  Result<OwnedTable> read_table(const std::string& path, const std::string& dataset,
                                TableCast cast = TableCast::none);
  Result<InteropGroup> read_interop_group(const std::string& path, const std::string& group);
  Result<std::vector<std::string>> list_masks(const std::string& path);
  Result<BlockMask> read_mask(const std::string& path, const std::string& name = {});
  Result<bool> has_object(const std::string& path, const std::string& object);
  Result<TensorSpec> describe_tensor(const std::string& path, const std::string& dataset);
  Result<OwnedTensor> read_tensor(const std::string& path, const std::string& dataset,
                                  const TensorSpec& expected);
  Result<FileContents> list_datasets(const std::string& path);

  /// The number of children that ended otherwise than on request.
  std::int64_t num_crashes() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace fdma
