// Users' dense masks in HDF5: read in row panels, never whole.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// The dimensions of a dense dataset. bk is a padding mask [batch, kv_len] that every query row
/// shares; extents of 1 may stand between, [batch, 1, 1, kv_len] as Hugging Face has it.
enum class DenseDims : std::uint8_t { qk, hqk, bqk, bhqk, bk };

struct DenseReadOptions {
  std::optional<DenseDims> dims;     ///< default: 2-D qk, 4-D bhqk; 3-D has none and must be given
  bool true_means_attend = true;     ///< boolean and integer masks; false: true means masked
  std::optional<double> drop_below;  ///< float masks: a value at or below this is masked; default
                                     ///< -32752 (half of float16's lowest)
  bool ones_keep = false;            ///< float masks: 1 keeps and 0 masks; nothing else is allowed
  std::int64_t q_len = 0;            ///< bk only: query rows of the result; 0 means kv_len
  BlockShape block;
  int num_threads = 0;
  std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>
      progress;  ///< called from the reading thread
  std::function<bool()>
      is_cancelled;  ///< polled between panels; true stops with ErrorCode::io "interrupted"
  bool allow_plugins = false;  ///< HDF5 may load plugins for filters that it does not have
  bool reads_directly = true;  ///< false: every byte through HDF5, slower, with the same result
  std::int64_t max_result_bytes = 0;  ///< a larger result stops with out_of_memory; 0: no limit
};

/// Reads dataset `dataset` of the file at `path` as a mask.
///
/// Accepts     boolean (HDF5 enum FALSE, TRUE as h5py writes) and integers of any width: 0 and 1
///             only
///             float16, float32, float64 and bfloat16 (uint16 with attribute dtype = "bfloat16"):
///             0 keeps; -inf and any value at or below drop_below masks (ones_keep: 1 keeps, 0 masks)
/// Errors      io: absent file or dataset
///             corrupt_file: not HDF5, truncated, refused storage (external, virtual, links out of
///             the file)
///             invalid_argument: another value, with its cell and the option to use
///             shape_mismatch: rank and dims disagree
///             out_of_memory: max_result_bytes
/// Cost        memory: the result and at most 256 MiB; where chunks are above 32 MiB, the size of
///             one chunk besides
///             contiguous datasets, and chunks stored plain, shuffled, deflated or with checksums,
///             are read from the file in parallel, without HDF5's data path
///             everything else (other filters, converted types, chunks above 32 MiB) goes through
///             H5Dread
Result<BlockMask> read_dense_mask(const std::string& path, const std::string& dataset,
                                  const DenseReadOptions& options = {});

/// A numeric table for the mask language, which owns its elements: a dataset of rank 0 to 4,
/// boolean or integer, or float32 for the scores of topk.
struct OwnedTable {
  std::vector<std::byte> bytes;
  TensorView view() const;  ///< borrows `bytes`
  DType dtype = DType::int64;
  int rank = 0;
  std::int64_t extents[kMaxRank] = {1, 1, 1, 1};
};

/// What read_table makes of floating values other than float32.
enum class TableCast : std::uint8_t {
  none,     ///< they are an error
  numbers,  ///< whole numbers become int64, float32 ones too; any other value is an error
  scores,   ///< they become float32; a value that float32 does not hold exactly is an error
};
Result<OwnedTable> read_table(const std::string& path, const std::string& dataset,
                              TableCast cast = TableCast::none);

}  // namespace fdma
