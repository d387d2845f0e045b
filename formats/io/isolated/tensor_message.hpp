// Tensors as messages between the process that reads a file and the one that asked for it.
#pragma once

#include "fdma/io/tensor_dataset.hpp"
#include "io/isolated/message_stream.hpp"

namespace fdma::io {

void write_message(MessageWriter& out, const TensorSpec& spec);
/// Errors: io, corrupt_file (unknown type, rank, extents beyond 2^62 bytes).
Result<TensorSpec> read_spec_message(MessageReader& in);

void write_message(MessageWriter& out, OwnedTensor tensor);
/// Errors: also corrupt_file (bytes that are not those of the extents), out_of_memory.
Result<OwnedTensor> read_tensor_message(MessageReader& in);

void write_message(MessageWriter& out, bool value);
Result<bool> read_flag_message(MessageReader& in);

}  // namespace fdma::io
