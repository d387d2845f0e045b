#include "mask_suite.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace fdma::suite {
namespace {

/// The document of each token.
std::vector<std::int32_t> ids_of(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> ids;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    ids.insert(ids.end(), static_cast<std::size_t>(lengths[d]), static_cast<std::int32_t>(d));
  }
  return ids;
}

/// The part of each token in its document. Document d is a question (part 0) and 2 + d % 5 answers
/// of equal length. The last answer also has the remaining tokens.
std::vector<std::int32_t> parts_of(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> parts;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    const auto answers = static_cast<std::int32_t>(2 + d % 5);
    const std::int32_t part_len = std::max(lengths[d] / (answers + 1), 1);
    for (std::int32_t i = 0; i < lengths[d]; ++i) {
      parts.push_back(std::min(i / part_len, answers));
    }
  }
  return parts;
}

/// For each key k, the first query that sees it under qk_sparse if that is later than k itself;
/// otherwise 0.
std::vector<std::int32_t> visible_from(const DocumentSample& sample) {
  std::vector<std::int32_t> first;
  std::int32_t begin = 0;
  for (std::size_t d = 0; d < sample.lengths.size(); ++d) {
    const std::int32_t end = begin + sample.lengths[d];
    first.insert(first.end(), static_cast<std::size_t>(end - begin), sample.flags[d] ? end : 0);
    begin = end;
  }
  return first;
}

/// For each key k, the first query that no longer sees it; n for keys that are never evicted.
std::vector<std::int32_t> eviction_ends(std::int64_t n, Random& random) {
  std::vector<std::int32_t> ends(static_cast<std::size_t>(n), static_cast<std::int32_t>(n));
  std::vector<std::int32_t> alive;
  for (std::int64_t q = 0; q < n; ++q) {
    if (q >= n / 2 && !alive.empty()) {
      const auto victim =
          static_cast<std::size_t>(random.below(static_cast<std::int64_t>(alive.size())));
      ends[static_cast<std::size_t>(alive[victim])] = static_cast<std::int32_t>(q);
      alive[victim] = alive.back();
      alive.pop_back();
    }
    alive.push_back(static_cast<std::int32_t>(q));
  }
  return ends;
}

/// Independent scores in (0, 1), as exp(A softplus(dt)) has them, in steps of 2^-24.
std::vector<float> random_scores(std::int64_t n, Random& random) {
  std::vector<float> scores(static_cast<std::size_t>(n));
  for (float& score : scores)
    score = static_cast<float>(random.below((1 << 24) - 1) + 1) * 0x1p-24F;
  return scores;
}

/// The same documents over `seq_len` tokens. Boundaries are scaled and rounded down, and documents
/// that become empty are dropped.
DocumentSample scaled(const DocumentSample& sample, std::int64_t seq_len) {
  std::int64_t total = 0;
  for (const std::int32_t length : sample.lengths) total += length;
  DocumentSample result;
  std::int64_t end = 0, scaled_end = 0;
  for (std::size_t d = 0; d < sample.lengths.size(); ++d) {
    end += sample.lengths[d];
    const auto length = static_cast<std::int32_t>(end * seq_len / total - scaled_end);
    if (length == 0) continue;
    scaled_end += length;
    result.lengths.push_back(length);
    result.prefixes.push_back(static_cast<std::int32_t>(sample.prefixes[d] * seq_len / total));
    result.flags.push_back(sample.flags[d]);
  }
  return result;
}

}  // namespace

DocumentSample document_sample(std::int64_t seq_len) {
  if (seq_len < kSuiteLengths[0]) return scaled(document_sample(kSuiteLengths[0]), seq_len);
  std::ifstream file(FDMA_DOCUMENT_LENGTHS);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  const std::int64_t sampled_len = seq_len > 131072 ? 131072 : seq_len;
  const std::string key = std::to_string(sampled_len);
  if (json.is_discarded() || !json.contains(key) || seq_len % sampled_len != 0) {
    std::cerr << FDMA_DOCUMENT_LENGTHS << ": no sample of " << key << " tokens\n";
    std::abort();
  }
  const auto& first = json.at(key).at(0);
  DocumentSample sample;
  for (std::int64_t copy = 0; copy < seq_len / sampled_len; ++copy) {
    for (const auto& document : first.at("documents")) {
      sample.prefixes.push_back(document.at(0).get<std::int32_t>());
      sample.lengths.push_back(document.at(1).get<std::int32_t>());
    }
    for (const auto& flag : first.at("flags")) sample.flags.push_back(flag.get<int>() != 0);
  }
  return sample;
}

std::vector<SuiteMask> mask_suite(std::int64_t seq_len) {
  const DocumentSample sample = document_sample(seq_len);
  Random random(static_cast<std::uint64_t>(seq_len));
  const SuiteTable lengths = integers(sample.lengths);
  const SuiteTable ids = integers(ids_of(sample.lengths));
  const std::string sixteenth = std::to_string(seq_len / 16);
  const std::string width = std::to_string(std::max<std::int64_t>(seq_len / 16, 1));

  std::vector<SuiteMask> suite;
  const auto add = [&](const char* name, const std::string& spec,
                       std::map<std::string, SuiteTable, std::less<>> tables = {}) {
    suite.push_back(make_square(name, spec, seq_len));
    suite.back().tables = std::move(tables);
  };
  add("full", "true");
  add("causal", "causal");
  add("sliding_window", "causal & window(" + width + ")");
  add("causal_document", "causal & documents(lengths=@len)", {{"len", lengths}});
  add("document", "documents(lengths=@len)", {{"len", lengths}});
  add("share_question", "causal & share_question(ids=@id, parts=@part)",
      {{"id", ids}, {"part", integers(parts_of(sample.lengths))}});
  add("global_sliding_window", "global(16) | window(" + sixteenth + ", " + sixteenth + ")");
  add("causal_blockwise", "causal_blockwise(ids=@id)", {{"id", ids}});
  add("prefix_lm_causal", "causal | prefix(" + std::to_string(seq_len / 2) + ")");
  add("prefix_lm_document", "prefix_documents(ids=@id, prefix=@p)",
      {{"id", ids}, {"p", integers(sample.prefixes)}});
  add("qk_sparse", "causal & @visible_from[k] <= q",
      {{"visible_from", integers(visible_from(sample))}});
  add("random_eviction", "causal & q < @end[k]",
      {{"end", integers(eviction_ends(seq_len, random))}});
  add("zoh_topk",
      "causal & topk(@score, " + std::to_string(std::max<std::int64_t>(seq_len / 64, 1)) + ")",
      {{"score", floats(random_scores(seq_len, random))}});
  return suite;
}

std::vector<SuiteMask> packed_million() {
  constexpr std::int64_t kLen = 1048576;
  Random random(263);
  const SuiteTable lengths = integers(random_lengths(kLen, 263, random));
  std::vector<SuiteMask> masks;
  masks.push_back(make_square("packed_263", "causal & documents(lengths=@len)", kLen));
  masks.push_back(
      make_square("packed_263_window", "causal & window(1024) & documents(lengths=@len)", kLen));
  for (SuiteMask& mask : masks) mask.tables.emplace("len", lengths);
  return masks;
}

}  // namespace fdma::suite
