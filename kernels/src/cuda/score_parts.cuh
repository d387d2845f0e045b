// The score whose terms depend on the pair of query and key: a bias of pairs, slopes of distances
// (ALiBi), tables of distances. A call has some of them, and the branches that ask which are the same
// for all threads. Terms are added to the logits of a step at once, so that their loads are in flight
// together; the mask comes after them, so that pairs that are not attended may hold anything.
//
// Example     columns are keys, row i = {.., query 5, key 130}, q_len = kv_len: element 4 j + 2 i + e
//             is pair (5, 130 + 8 j + e), at distance key - pos = 125 + 8 j + e
// Cost        a bias: a load and two instructions a pair; slopes: two instructions; a table: a load
//             and four
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/out_low.cuh"
#include "cuda/score.cuh"

namespace fdma::gpu {

/// The product times any scale, plus a bias of the key and terms of the pair where the call has them.
struct PartsScore : KeyBiasScore {
  static constexpr bool kNeedsPlaces = true, kAddsTerms = true;

  struct Arguments {
    PairValues<const void> bias;
    QueryValues<const float> slopes;
    DistanceTable<const float> relative;
    PairValues<void> dbias;
    DistanceTable<float> drelative;
    bool sums_dbias;
    bool bias_has_pairs;  ///< two keys from an even one on are one aligned load
  };
  static Arguments arguments(const ScoreNumbers& of) {
    const auto is_even = [](std::int64_t stride) { return stride % 2 == 0; };
    const auto size = static_cast<std::uintptr_t>(size_bytes(of.bias.dtype));
    return {of.bias,
            of.alibi_slopes,
            of.relative,
            of.dbias,
            of.drelative,
            of.sums_dbias,
            is_even(of.bias.batch_stride) && is_even(of.bias.head_stride) &&
                is_even(of.bias.row_stride) &&
                reinterpret_cast<std::uintptr_t>(of.bias.data) % (2 * size) == 0};
  }

  /// Adds the terms of the pairs to the logits of a step, in powers of two. cells_of(i): those of row
  /// i; where rows are keys, row 1 is 8 keys after row 0.
  template <class T, bool kRowsAreKeys, int kCount, class CellsOf>
  __device__ __forceinline__ static void add_terms(float (&s)[kCount], const Arguments& arguments,
                                                   const CellsOf& cells_of) {
    if (arguments.slopes.data != nullptr) add_slopes<kRowsAreKeys>(s, arguments, cells_of);
    if (arguments.relative.data != nullptr) add_relative<kRowsAreKeys>(s, arguments, cells_of);
    if (arguments.bias.data == nullptr) return;
    if (arguments.bias.dtype == DType::float32) {
      add_bias<float, kRowsAreKeys>(s, arguments, cells_of);
    } else {
      add_bias<T, kRowsAreKeys>(s, arguments, cells_of);
    }
  }

  /// Adds the gradients of a step's logits, whose rows are keys, to those of the terms. `first`: the
  /// cells of row 0.
  template <class T, int kCount>
  __device__ __forceinline__ static void add_gradients(const float (&ds)[kCount],
                                                       const Arguments& arguments,
                                                       const RowCells& first) {
    if (arguments.dbias.data != nullptr) {
      if (arguments.sums_dbias) {
        add_to_bias(ds, arguments, first);
      } else if (arguments.dbias.dtype == DType::float32) {
        store_to_bias<float>(ds, arguments, first);
      } else {
        store_to_bias<T>(ds, arguments, first);
      }
    }
    if (arguments.drelative.data != nullptr) add_to_relative(ds, arguments, first);
  }

 private:
  static constexpr float kLog2E = 1.44269504088896340736f;

  /// The distance key - pos of the first cell of row i. Columns change it by 1 or -1.
  __device__ __forceinline__ static int first_distance(const RowCells& row) {
    return row.key - (row.query + row.kv_len - row.q_len);
  }
  /// Index of the first cell of a row in a tensor of pairs.
  template <class Data>
  __device__ __forceinline__ static std::int64_t first_index(const PairValues<Data>& of,
                                                             const RowCells& row) {
    return of.offset(row.batch, row.head, row.query) + row.key;
  }

  template <bool kRowsAreKeys, int kCount, class CellsOf>
  __device__ __forceinline__ static void add_slopes(float (&s)[kCount], const Arguments& arguments,
                                                    const CellsOf& cells_of) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const RowCells row = cells_of(i);
      const float slope = -kLog2E * __ldg(arguments.slopes.place(row.batch, row.head, 0));
      const auto distance = static_cast<float>(first_distance(row));
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto column = static_cast<float>(kRowsAreKeys ? -(8 * j + e) : 8 * j + e);
          float& x = s[4 * j + 2 * i + e];
          x = fmaf(slope, fabsf(distance + column), x);
        }
      }
    }
  }

  template <bool kRowsAreKeys, int kCount, class CellsOf>
  __device__ __forceinline__ static void add_relative(float (&s)[kCount],
                                                      const Arguments& arguments,
                                                      const CellsOf& cells_of) {
    const DistanceTable<const float>& table = arguments.relative;
    constexpr int kSpan =
        2 * kCount - 6;  // from the distance of its first cell to that of its last
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const RowCells row = cells_of(i);
      // Of distance 0.
      const float* from = table.data + row.head * table.head_stride + table.left;
      const int first = first_distance(row);
      const int least = kRowsAreKeys ? first - (kSpan - 1) : first, most = least + kSpan - 1;
      if (__all_sync(~0u, least >= -table.left && most <= table.right)) {
        add_numbers<kRowsAreKeys>(s, i, [&](int column) { return __ldg(from + first + column); });
      } else if (__all_sync(~0u, most <= -table.left || least >= table.right)) {
        const float end = __ldg(from + (most <= -table.left ? -table.left : table.right));
        add_numbers<kRowsAreKeys>(s, i, [&](int) { return end; });
      } else {
        add_numbers<kRowsAreKeys>(s, i, [&](int column) {
          return __ldg(from + min(max(first + column, -table.left), table.right));
        });
      }
    }
  }
  /// Adds value(column) to row i, with columns negative where they lessen distances.
  template <bool kRowsAreKeys, int kCount, class Value>
  __device__ __forceinline__ static void add_numbers(float (&s)[kCount], int i,
                                                     const Value& value) {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * j + 2 * i + e];
        x = fmaf(kLog2E, value(kRowsAreKeys ? -(8 * j + e) : 8 * j + e), x);
      }
    }
  }

  template <class Element, bool kRowsAreKeys, int kCount, class CellsOf>
  __device__ __forceinline__ static void add_bias(float (&s)[kCount], const Arguments& arguments,
                                                  const CellsOf& cells_of) {
    if constexpr (kRowsAreKeys) {
      const RowCells first = cells_of(0);
      walk_queries<kCount>(
          static_cast<const Element*>(arguments.bias.data) + first_index(arguments.bias, first),
          arguments.bias.row_stride, first, [&](const Element* from, int at) {
            s[at] = fmaf(kLog2E, static_cast<float>(__ldg(from)), s[at]);
          });
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) add_bias_of_row<Element>(s, i, arguments, cells_of(i));
    }
  }
  template <class Element, int kCount>
  __device__ __forceinline__ static void add_bias_of_row(float (&s)[kCount], int i,
                                                         const Arguments& arguments,
                                                         const RowCells& row) {
    constexpr int kColumns = 2 * kCount - 6;  // from a thread's first one to its last one
    const Element* from =
        static_cast<const Element*>(arguments.bias.data) + first_index(arguments.bias, row);
    const int num_keys = row.query < row.q_len ? row.kv_len - row.key : 0;
    if (arguments.bias_has_pairs && num_keys >= kColumns) {
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
        const float2 pair = load_two(from + 8 * j);
        s[4 * j + 2 * i] = fmaf(kLog2E, pair.x, s[4 * j + 2 * i]);
        s[4 * j + 2 * i + 1] = fmaf(kLog2E, pair.y, s[4 * j + 2 * i + 1]);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * j + 2 * i + e];
        if (8 * j + e < num_keys) x = fmaf(kLog2E, static_cast<float>(__ldg(from + 8 * j + e)), x);
      }
    }
  }
  __device__ __forceinline__ static float2 load_two(const float* from) {
    return __ldg(reinterpret_cast<const float2*>(from));
  }
  template <class Element>
  __device__ __forceinline__ static float2 load_two(const Element* from) {
    return unpack<Element>(__ldg(reinterpret_cast<const std::uint32_t*>(from)));
  }

  /// Calls use(address, at) for each cell `at` of a step whose rows are keys, if it exists. `element`
  /// is the address of the first one, and `step` the distance from a query to the next.
  template <int kCount, class Element, class Use>
  __device__ __forceinline__ static void walk_queries(Element* element, std::int64_t step,
                                                      const RowCells& first, const Use& use) {
    const int num_queries = first.q_len - first.query;
    const bool exists[2] = {first.key < first.kv_len, first.key + 8 < first.kv_len};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < num_queries) {
          if (exists[0]) use(element, 4 * j + e);
          if (exists[1]) use(element + 8, 4 * j + 2 + e);
        }
        // One by one, because multiples of the step would take a pair of registers each.
        element += e == 0 ? step : 7 * step;
      }
    }
  }

  template <class Element, int kCount>
  __device__ __forceinline__ static void store_to_bias(const float (&ds)[kCount],
                                                       const Arguments& arguments,
                                                       const RowCells& first) {
    walk_queries<kCount>(
        static_cast<Element*>(arguments.dbias.data) + first_index(arguments.dbias, first),
        arguments.dbias.row_stride, first,
        [&](Element* to, int at) { *to = static_cast<Element>(ds[at]); });
  }

  /// Where pairs share an element. Queries that do are added first.
  template <int kCount>
  __device__ __forceinline__ static void add_to_bias(const float (&ds)[kCount],
                                                     const Arguments& arguments,
                                                     const RowCells& first) {
    float* to = static_cast<float*>(arguments.dbias.data) + first_index(arguments.dbias, first);
    if (arguments.dbias.row_stride != 0) {
      walk_queries<kCount>(to, arguments.dbias.row_stride, first,
                           [&](float* element, int at) { atomicAdd(element, ds[at]); });
      return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) sum += ds[4 * j + 2 * i] + ds[4 * j + 2 * i + 1];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (threadIdx.x % 4 == 0 && first.key + 8 * i < first.kv_len) atomicAdd(to + 8 * i, sum);
    }
  }

  /// Cell j + 1 of row 1 is as far as cell j of row 0, and both are added first.
  template <int kCount>
  __device__ __forceinline__ static void add_to_relative(const float (&ds)[kCount],
                                                         const Arguments& arguments,
                                                         const RowCells& first) {
    const DistanceTable<float>& table = arguments.drelative;
    constexpr int kSteps = kCount / 4;
    float* to = table.data + first.head * table.head_stride + table.left;
    const int distance = first_distance(first);
    // Keys that do not exist have gradients that nothing else takes.
    const auto of_row = [&](int i, float x) { return first.key + 8 * i < first.kv_len ? x : 0.0f; };
    const bool is_left = distance + 8 <= -table.left,
               is_right = distance - 8 * kSteps + 7 >= table.right;
    if (__all_sync(~0u, is_left) || __all_sync(~0u, is_right)) {
      float sum = 0.0f;
#pragma unroll
      for (int at = 0; at < kCount; ++at) sum += of_row(at / 2 % 2, ds[at]);
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
      if (threadIdx.x % 32 == 0) atomicAdd(to + (is_left ? -table.left : table.right), sum);
      return;
    }
#pragma unroll
    for (int j = -1; j < kSteps; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = 0.0f;
        if (j >= 0) sum += of_row(0, ds[4 * j + e]);
        if (j + 1 < kSteps) sum += of_row(1, ds[4 * (j + 1) + 2 + e]);
        if (sum != 0.0f) {
          atomicAdd(to + min(max(distance - 8 * j - e, -table.left), table.right), sum);
        }
      }
    }
  }
};

}  // namespace fdma::gpu
