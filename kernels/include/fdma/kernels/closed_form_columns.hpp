// ClosedFormColumns: a closed-form mask read key by key, for gradients of keys. Host and device run
// the same code.
//
// The closed form (closed_form_mask.hpp) gives a key some queries of its document:
//   in the prefix  all of them
//   in the sink    those from pos >= key - right on, since every later row sees a sink key that is
//                  not in the future
//   elsewhere      those with key - right <= pos <= key + left
// Each key thus has one interval of queries. The begin of the interval grows with the key. Its end
// grows with the key both before and after the end of prefix and sink. The first and last key of
// each of these two parts therefore decide which queries all keys of a tile have, and which any
// has.
//
// Example     left = 1, right = 0, sink = 1, four queries and keys:
//             key 0 has queries [0, 4), key 1 has [1, 3), key 2 has [2, 4), key 3 has [3, 4)
#pragma once

#include <cstdint>

#include "fdma/kernels/closed_form_mask.hpp"
#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// A closed form with the lengths of one batch element and its borders, as ClosedFormRows.
class ClosedFormColumns {
 public:
  FDMA_HOST_DEVICE ClosedFormColumns(const ClosedFormMask& closed_form, const std::int32_t* borders,
                                     std::int32_t q_len, std::int32_t kv_len)
      : closed_form_(closed_form),
        borders_(borders),
        q_len_(q_len),
        kv_len_(kv_len),
        shift_(kv_len - q_len + closed_form.pos_shift) {}

  /// The keys of [k_begin, k_end) that padding and length leave.
  FDMA_HOST_DEVICE ClosedFormRange keys(std::int32_t k_begin, std::int32_t k_end) const {
    std::int32_t end = closed_form_.kv_end < kv_len_ ? closed_form_.kv_end : kv_len_;
    if (k_end < end) end = k_end;
    return {k_begin > closed_form_.kv_begin ? k_begin : closed_form_.kv_begin, end};
  }

  /// The document of key k; 0 without documents.
  FDMA_HOST_DEVICE std::int32_t document(std::int32_t k) const {
    return closed_form_.num_borders == 0
               ? 0
               : closed_form_document(borders_, closed_form_.num_borders, k);
  }
  /// As above, for a key between two whose documents are known.
  FDMA_HOST_DEVICE std::int32_t document(std::int32_t k, std::int32_t first,
                                         std::int32_t last) const {
    return closed_form_document(borders_, k, first, last);
  }

  /// The queries of a document.
  FDMA_HOST_DEVICE ClosedFormRange bounds(std::int32_t document) const {
    ClosedFormRange queries{0, q_len_};
    if (closed_form_.num_borders > 0) {
      const std::int32_t last = closed_form_.num_borders - 1;
      const std::int32_t begin = borders_[document < 0 ? 0 : document] - shift_;
      const std::int32_t end =
          document < 0 || document >= last ? begin : borders_[document + 1] - shift_;
      if (begin > queries.begin) queries.begin = begin;
      if (end < queries.end) queries.end = end;
    }
    return queries;
  }

  /// The queries that see key k; `bounds` are those of its document.
  FDMA_HOST_DEVICE ClosedFormRange queries(std::int32_t k, ClosedFormRange bounds) const {
    if (keys(k, k + 1).is_empty()) return {0, 0};
    return {begin(k, bounds), end(k, bounds)};
  }
  FDMA_HOST_DEVICE ClosedFormRange queries(std::int32_t k) const {
    return queries(k, bounds(document(k)));
  }

  /// The queries of keys from k_begin up to k_end. is_valid is 0 unless padding and length leave
  /// all of these keys, the keys lie on one side of the ends of prefix and sink, and they are of
  /// one document or of two that follow each other. `first` and `last` are the documents of the
  /// first and the last key.
  FDMA_HOST_DEVICE ClosedFormBand band(std::int32_t k_begin, std::int32_t k_end, std::int32_t first,
                                       std::int32_t last) const {
    ClosedFormBand band{};
    const ClosedFormRange left_by_padding = keys(k_begin, k_end);
    const auto is_divided = [&](std::int32_t at) { return k_begin < at && at < k_end; };
    if (left_by_padding.begin > k_begin || left_by_padding.end < k_end ||
        is_divided(closed_form_.prefix) || is_divided(near_end()) || last > first + 1) {
      return band;
    }
    band.begin = k_begin < closed_form_.prefix ? -kClosedFormUnbounded
                                               : k_begin - closed_form_.right - shift_;
    band.end =
        k_begin < near_end() ? kClosedFormUnbounded : k_begin + closed_form_.left + 1 - shift_;
    band.first = bounds(first);
    band.last = last == first ? band.first : bounds(last);
    band.last_row = last == first ? kClosedFormUnbounded : borders_[last] - k_begin;
    band.is_valid = 1;
    return band;
  }

  /// Whether key k lies in the prefix or the sink.
  FDMA_HOST_DEVICE bool is_near(std::int32_t k) const { return k < near_end(); }

  /// The query tiles of keys [k_begin, k_end), k_begin < k_end <= kv_len, ascending. Tiles that are
  /// left out are empty, tiles in the middle are full. `first` and `last` are the documents of the
  /// first and the last key.
  FDMA_HOST_DEVICE ClosedFormWalk walk(std::int32_t k_begin, std::int32_t k_end, std::int32_t first,
                                       std::int32_t last, std::int32_t block_q) const {
    const ClosedFormRange left_by_padding = keys(k_begin, k_end);
    ClosedFormRange any{0, 0}, all{0, q_len_};
    if (left_by_padding.begin > k_begin || left_by_padding.end < k_end) all.end = 0;
    const std::int32_t near = near_end();
    const auto add = [&](std::int32_t part_begin, std::int32_t part_end) {
      if (part_begin >= part_end) return;
      const ClosedFormRange first_bounds = bounds(document(part_begin, first, last)),
                            last_bounds = bounds(document(part_end - 1, first, last));
      const ClosedFormRange part_any{begin(part_begin, first_bounds),
                                     end(part_end - 1, last_bounds)};
      const ClosedFormRange part_all{begin(part_end - 1, last_bounds),
                                     end(part_begin, first_bounds)};
      if (part_all.begin > all.begin) all.begin = part_all.begin;
      if (part_all.end < all.end) all.end = part_all.end;
      const bool is_band = part_begin >= near;
      if (part_any.is_empty() || (is_band && closed_form_.left < -closed_form_.right)) return;
      if (any.is_empty()) {
        any = part_any;
        return;
      }
      if (part_any.begin < any.begin) any.begin = part_any.begin;
      if (part_any.end > any.end) any.end = part_any.end;
    };
    const auto cut = [&](std::int32_t at) {
      return at < left_by_padding.begin ? left_by_padding.begin
             : at > left_by_padding.end ? left_by_padding.end
                                        : at;
    };
    if (!left_by_padding.is_empty()) {
      add(left_by_padding.begin, cut(near));
      add(cut(near), left_by_padding.end);
    }
    return {any, all, q_len_, block_q};
  }

  FDMA_HOST_DEVICE ClosedFormWalk walk(std::int32_t k_begin, std::int32_t k_end,
                                       std::int32_t block_q) const {
    return walk(k_begin, k_end, document(k_begin), document(k_end - 1), block_q);
  }

 private:
  /// The end of prefix and sink; every later row of their document sees the keys before it.
  FDMA_HOST_DEVICE std::int32_t near_end() const {
    return closed_form_.prefix > closed_form_.sink ? closed_form_.prefix : closed_form_.sink;
  }
  FDMA_HOST_DEVICE std::int32_t begin(std::int32_t k, ClosedFormRange bounds) const {
    const std::int32_t begin = k - closed_form_.right - shift_;
    return k < closed_form_.prefix || begin < bounds.begin ? bounds.begin : begin;
  }
  FDMA_HOST_DEVICE std::int32_t end(std::int32_t k, ClosedFormRange bounds) const {
    const std::int32_t end = k + closed_form_.left + 1 - shift_;
    return k < near_end() || end > bounds.end ? bounds.end : end;
  }

  ClosedFormMask closed_form_;
  const std::int32_t* borders_;
  std::int32_t q_len_;
  std::int32_t kv_len_;
  std::int32_t shift_;  ///< the position of query q is q + shift_
};

}  // namespace fdma
