// --table NAME=zoh(values=.., dt_proj=.., a_coef=..): scores computed from tensors in HDF5.
#pragma once

#include <string>
#include <string_view>

#include "cli/outcome.hpp"
#include "fdma/io/dense_dataset.hpp"

namespace fdma::maskc {

/// True iff the value of a --table is such a call.
bool is_zoh_call(std::string_view value);

/// The scores as a float32 table [heads_kv, kv_len], or [batch, heads_kv, kv_len] if values have
/// more than one batch element.
///
/// Example     zoh(values=kv.h5:/values, dt_proj=layer.h5:/dt_proj, a_coef=layer.h5:/a_coef, mode=log)
/// Shapes      values [batch, kv_len, heads_kv, head_dim]
/// Defaults    an address without a file is in the file of values; mode is exp
/// Errors      usage: an invalid call, tensors that do not fit; file
Outcome<OwnedTable> zoh_table(const std::string& name, const std::string& value);

}  // namespace fdma::maskc
