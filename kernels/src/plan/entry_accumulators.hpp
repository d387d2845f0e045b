// Key lists in which at most two entries share a row of sums.
#pragma once

#include "fdma/kernels/kv_worklist.hpp"

namespace fdma {

/// The same lists with a row of sums for every two entries of a key that has one: those of a key
/// follow each other in the order of the list, so that sum_keys names it several times. To a row,
/// which is 0, a launch adds two numbers then, and it does not matter which comes first; rows of a
/// key are added up in order afterwards.
///
/// Invariants  a tile of keys is in one item of a KV head
/// Cost        O(keys + items + rows)
KeyLists with_sums_of_pairs(const KeyLists& lists);

}  // namespace fdma
