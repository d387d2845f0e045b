// The mask suite: masks of current training and inference, on which FDMA is measured.
#pragma once

#include <cstdint>
#include <vector>

#include "suite_mask.hpp"

namespace fdma::suite {

/// The lengths at which the mask suite is defined.
inline constexpr std::int64_t kSuiteLengths[] = {8192, 32768, 131072, 1048576};

/// The packed documents of one sequence. For 8192, 32768 and 131072 tokens they are the first
/// sample in tests/data/document_lengths.json. For 1048576 tokens they are that of 131072 eight
/// times, and for fewer than 8192 that of 8192 scaled down.
struct DocumentSample {
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> prefixes;  ///< prefix length of each document
  std::vector<bool> flags;             ///< the documents that qk_sparse hides until they end
};
DocumentSample document_sample(std::int64_t seq_len);

/// The thirteen masks, q_len = kv_len = seq_len (one of kSuiteLengths, or less for unit tests), by
/// name:
///   full                   true
///   causal                 k <= q
///   sliding_window         k <= q and q - k < S/16 (at least 1)
///   causal_document        same document and k <= q
///   document               same document
///   share_question         each document is a question and 2 to 6 answers of equal length: k <= q,
///                          same document, k in the question or in q's own answer
///   global_sliding_window  k < 16 or q < 16 or abs(q - k) <= S/16
///   causal_blockwise       k <= q and (same document or q in the last one)
///   prefix_lm_causal       k <= q or k < S/2
///   prefix_lm_document     same document and (k <= q or k in the document's prefix)
///   qk_sparse              k <= q; the keys of a flagged document only from its end on
///   random_eviction        k <= q and q < end[k]: at each query from S/2 on one random key seen so
///                          far is evicted, so that half of the keys go
///   zoh_topk               k <= q and k among the S/64 (2048 at 128K) highest-scored keys of
///                          [0, q]; independent random scores, as those of values are at first
std::vector<SuiteMask> mask_suite(std::int64_t seq_len);

/// Causal over 1048576 tokens in 263 documents of random lengths, without and with window(1024).
std::vector<SuiteMask> packed_million();

}  // namespace fdma::suite
