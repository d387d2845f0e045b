// Masks, arrays and errors as messages between the process that reads a file and the one that asked
// for it.
#pragma once

#include <string>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "fdma/io/file_contents.hpp"
#include "fdma/io/interop_group.hpp"
#include "io/isolated/message_stream.hpp"

namespace fdma::io {

/// Arrays are taken out of the mask as they are sent.
void write_message(MessageWriter& out, BlockMask mask);
/// Makes the checks that are made of a mask file: every array has the extents that lengths and
/// blocks imply before memory is taken for it, and the whole is valid at level structure. Errors:
/// io, corrupt_file.
Result<BlockMask> read_mask_message(MessageReader& in);

void write_message(MessageWriter& out, OwnedTable table);
/// Errors: io, corrupt_file (unknown type, extents that do not match the bytes, a boolean that is
/// neither 0 nor 1).
Result<OwnedTable> read_table_message(MessageReader& in);

void write_message(MessageWriter& out, InteropGroup group);
Result<InteropGroup> read_interop_message(MessageReader& in);

void write_message(MessageWriter& out, const std::vector<std::string>& names);
Result<std::vector<std::string>> read_names_message(MessageReader& in);

void write_message(MessageWriter& out, const FileContents& contents);
Result<FileContents> read_contents_message(MessageReader& in);

void write_message(MessageWriter& out, const Error& error);
Result<void> read_error_message(MessageReader& in, Error& error);

void write_message(MessageWriter& out, const DenseReadOptions& options);
/// The options without callbacks.
Result<DenseReadOptions> read_dense_options_message(MessageReader& in);

}  // namespace fdma::io
