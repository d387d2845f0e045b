// Key lists in which no two entries share a row of sums.
#pragma once

#include "fdma/kernels/key_lists.hpp"

namespace fdma {

/// The same lists with a row of sums for each entry of a key that has one: those of a key follow
/// each other in the order of the list, so that sum_keys names it several times. What a launch adds
/// to a row is then one addition, and rows of a key are added up in order afterwards.
///
/// Invariants  a tile of keys is in one item of a KV head
/// Cost        O(keys + items + rows)
KeyLists with_sums_of_entries(const KeyLists& lists);

}  // namespace fdma
