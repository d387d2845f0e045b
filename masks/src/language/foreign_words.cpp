#include "language/foreign_words.hpp"

namespace fdma {
namespace {

struct ForeignWord {
  std::string_view word;
  std::string_view remedy;
};

constexpr std::string_view kQuery =
    "the query row is q here, and pos is its position among the keys";
constexpr std::string_view kKey = "the key is k here";
constexpr std::string_view kBatch = "the batch element is b here";
constexpr std::string_view kHead = "the query head is h here";
constexpr std::string_view kQueryLength = "the number of query rows is q_len here";
constexpr std::string_view kKeyLength =
    "the number of keys is kv_len here, and that of queries q_len";
constexpr std::string_view kWindow =
    "write causal & window(w) for the last w keys, or window(left, right)";
constexpr std::string_view kDocuments = "write documents(ids=@t), with one id for each key in t";
constexpr std::string_view kPadding =
    "write padding(lengths=@t), with one length for each batch element";
constexpr std::string_view kCausal = "write causal";
constexpr std::string_view kScore = "that adds to scores; a mask only says which pairs attend";
constexpr std::string_view kModule =
    "there are no modules: operators are + - * // % & | ^ ~ and functions";

constexpr ForeignWord kForeignWords[] = {
    {"q_idx", kQuery},
    {"query_idx", kQuery},
    {"q_index", kQuery},
    {"q_pos", kQuery},
    {"query", kQuery},
    {"query_pos", kQuery},
    {"position", kQuery},
    {"row", kQuery},
    {"kv_idx", kKey},
    {"k_idx", kKey},
    {"key_idx", kKey},
    {"kv_index", kKey},
    {"k_pos", kKey},
    {"k_index", kKey},
    {"key", kKey},
    {"kv", kKey},
    {"col", kKey},
    {"column", kKey},
    {"b_idx", kBatch},
    {"batch", kBatch},
    {"batch_idx", kBatch},
    {"h_idx", kHead},
    {"head", kHead},
    {"head_idx", kHead},
    {"Q_LEN", kQueryLength},
    {"seqlen_q", kQueryLength},
    {"seq_len_q", kQueryLength},
    {"q_length", kQueryLength},
    {"query_length", kQueryLength},
    {"KV_LEN", kKeyLength},
    {"seqlen", kKeyLength},
    {"seq_len", kKeyLength},
    {"k_len", kKeyLength},
    {"seqlen_k", kKeyLength},
    {"seq_len_k", kKeyLength},
    {"seqlen_kv", kKeyLength},
    {"kv_length", kKeyLength},
    {"key_length", kKeyLength},
    {"sliding_window", kWindow},
    {"sliding_window_causal", kWindow},
    {"sliding", kWindow},
    {"window_size", kWindow},
    {"local", kWindow},
    {"local_attention", kWindow},
    {"band", kWindow},
    {"document", kDocuments},
    {"document_id", kDocuments},
    {"document_ids", kDocuments},
    {"document_mask", kDocuments},
    {"same_document", kDocuments},
    {"block_diagonal", "write documents(lengths=@t), with one length for each document"},
    {"doc_ids", kDocuments},
    {"segment_ids", kDocuments},
    {"cu_seqlens", "write documents(cu_seqlens=@t)"},
    {"position_ids", "write documents(ids=@t); positions that start again begin a document"},
    {"attention_mask", kPadding},
    {"key_padding_mask", kPadding},
    {"padding_mask", kPadding},
    {"key_padding", kPadding},
    {"causal_mask", kCausal},
    {"is_causal", kCausal},
    {"tril", kCausal},
    {"lower_triangular", kCausal},
    {"triu", "write k >= pos"},
    {"prefix_lm", "write causal | prefix(p)"},
    {"attention_sink", "write sink(s) for the first s keys"},
    {"full", "write true"},
    {"noop", "write true"},
    {"noop_mask", "write true"},
    {"everything", "write true"},
    {"and_masks", "masks are joined by &"},
    {"or_masks", "masks are joined by |"},
    {"logical_and", "conjunction is written & or and"},
    {"logical_or", "disjunction is written | or or"},
    {"logical_not", "negation is written ~ or not"},
    {"alibi", kScore},
    {"softcap", kScore},
    {"score", kScore},
    {"score_mod", kScore},
    {"torch", kModule},
    {"np", kModule},
    {"jnp", kModule},
    {"math", kModule},
    {"lambda", "a mask is the condition alone, without lambda and parameters"},
    {"def", "a mask is the condition alone; parts of it are named by let name = ..;"},
    {"return", "a mask is the condition alone, without return"},
    {"if", "a choice is written where(condition, x, y)"},
    {"else", "a choice is written where(condition, x, y)"},
};

}  // namespace

std::vector<std::string_view> foreign_words() {
  std::vector<std::string_view> words;
  for (const ForeignWord& known : kForeignWords) words.push_back(known.word);
  return words;
}

std::optional<std::string_view> remedy_of_foreign_word(std::string_view word) {
  for (const ForeignWord& known : kForeignWords) {
    if (known.word == word) return known.remedy;
  }
  return std::nullopt;
}

}  // namespace fdma
