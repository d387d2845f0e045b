// Tables that named masks derive from the user's tables when they are bound, once per batch
// element.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fdma/base/result.hpp"
#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// A dense table of rank 1 that owns a copy of `values`.
IrTable make_owned_table(std::string name, DType dtype, const std::vector<std::int64_t>& values);

/// Document numbers of the keys [0, kv_len) as runs: documents of the given lengths in order
/// (numbered from 0 without the empty ones), then -1 for the keys after the last document.
///
/// Errors      invalid_argument: a negative length, lengths beyond kv_len
/// Cost        O(documents) for any kv_len
Result<IrTable> documents_from_lengths(const std::string& name, const IrTable& lengths,
                                       std::int64_t kv_len);
/// As above, from bounds: document d is [cu_seqlens[d], cu_seqlens[d + 1]).
///
/// Errors      invalid_argument: no bounds, a first bound other than 0, descending bounds, a last
///             bound beyond kv_len
Result<IrTable> documents_from_bounds(const std::string& name, const IrTable& cu_seqlens,
                                      std::int64_t kv_len);

/// A boolean table [kv_len]: whether the key is among the first prefix[id] keys of its document, in
/// key order. It is false for keys with a negative id.
///
/// Errors      invalid_argument: an id that is not below the number of documents
/// Cost        O(kv_len + documents); O(runs + documents), with a result in runs, if the ids are
///             runs
Result<IrTable> document_prefixes(const std::string& name, const IrTable& ids,
                                  const IrTable& prefix);

/// The numbers of a depth-first walk: a is x or an ancestor of x iff
/// entry[a] <= entry[x] and entry[x] < exit[a].
struct TreeOrder {
  IrTable entry;
  IrTable exit;
};
/// Errors      invalid_argument: a parent that is neither -1 nor a node, a cycle
Result<TreeOrder> tree_order(const std::string& name, const IrTable& parents);

/// The last entry that is not negative, or -1 if there is none. Cost: O(runs) for runs.
std::int64_t last_document(const IrTable& ids);

}  // namespace fdma
