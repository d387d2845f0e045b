// Readers of the CPU kernels: where the rows of K and V of a key lie.
//
// A reader is a value that a work tile owns, with `k_row(key)` and `v_row(key)`: addresses of rows
// in the types of the call's k and v. Keys are logical. Full tiles, kv index lists and kv
// permutations all name logical keys (tile_walk-inl.hpp), so that each reader serves them all.
#pragma once

#include <cstdint>

#include "call/checked_inputs.hpp"

namespace fdma::cpu {

/// KvLayout::contiguous: the rows of one KV head lie at a stride.
class StridedKv {
 public:
  StridedKv(const CheckedInputs& call, std::int32_t batch, std::int32_t kv_head)
      : k_(call.k), v_(call.v), batch_(batch), kv_head_(kv_head) {}

  const char* k_row(std::int64_t key) const { return k_.row(batch_, key, kv_head_); }
  const char* v_row(std::int64_t key) const { return v_.row(batch_, key, kv_head_); }

 private:
  const Strided &k_, &v_;
  std::int64_t batch_, kv_head_;
};

}  // namespace fdma::cpu
