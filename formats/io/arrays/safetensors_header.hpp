// The header of a safetensors file: eight bytes with its length, then a JSON object.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "io/arrays/input_bytes.hpp"
#include "io/arrays/stored_array.hpp"

namespace fdma::io {

/// The length that the first eight bytes of `front` state.
std::uint64_t safetensors_header_bytes(std::string_view front);
/// Whether a header of that length fits in a file.
bool is_safetensors_length(std::uint64_t header_bytes, std::int64_t file_bytes);

/// The tensors that the header describes, all of whose bytes lie in the file. Errors: corrupt_file,
/// with the byte of the JSON text or the name of the tensor; io.
Result<std::vector<StoredArray>> read_safetensors_header(const InputBytes& file);

}  // namespace fdma::io
