// kv worklists in which at most two entries share an accumulator row.
#pragma once

#include "fdma/kernels/kv_worklist.hpp"

namespace fdma {

/// The same worklists with one accumulator row for every two entries of a key that has a row. The
/// rows of a key are consecutive and follow the order of the list, so accum_keys names the key
/// several times. A launch then adds two numbers to a row, which is 0 before, so their order does
/// not matter. The rows of a key are added up in order afterwards.
///
/// Invariants  a tile of keys is in one work tile of a KV head
/// Cost        O(keys + work tiles + rows)
KvWorklist with_accum_of_pairs(const KvWorklist& lists);

}  // namespace fdma
