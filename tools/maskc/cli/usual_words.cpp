#include "cli/usual_words.hpp"

#include <span>

namespace fdma::maskc {
namespace {

struct Word {
  std::string_view other;
  std::string_view ours;
};

constexpr Word kVerbs[] = {
    {"show", "inspect"},     {"info", "inspect"},      {"describe", "inspect"},
    {"stat", "inspect"},     {"dump", "inspect"},      {"view", "inspect"},
    {"plot", "render"},      {"draw", "render"},       {"picture", "render"},
    {"image", "render"},     {"list", "ls"},           {"dir", "ls"},
    {"delete", "rm"},        {"remove", "rm"},         {"del", "rm"},
    {"merge", "pack"},       {"cat", "pack"},          {"concat", "pack"},
    {"join", "pack"},        {"and", "combine"},       {"or", "combine"},
    {"union", "combine"},    {"intersect", "combine"}, {"crop", "combine"},
    {"compare", "diff"},     {"cmp", "diff"},          {"verify", "check"},
    {"validate", "check"},   {"test", "check"},        {"time", "bench"},
    {"benchmark", "bench"},  {"predict", "estimate"},  {"cost", "estimate"},
    {"savings", "estimate"}, {"profile", "calibrate"}, {"measure", "calibrate"},
    {"import", "convert"},   {"export", "convert"},    {"to", "convert"},
    {"build", "compile"},    {"make", "compile"},      {"create", "compile"},
    {"new", "compile"},      {"attention", "run"},     {"exec", "run"},
};

constexpr std::string_view kLengths = "lengths are --q-len and --kv-len";

constexpr Word kOptions[] = {
    {"seqlen", kLengths},
    {"seq-len", kLengths},
    {"seq_len", kLengths},
    {"seqlen-q", kLengths},
    {"seqlen-k", kLengths},
    {"length", kLengths},
    {"len", kLengths},
    {"size-q", kLengths},
    {"tokens", kLengths},
    {"dtype", "a mask has no type; --dtype is of run, bench and estimate"},
    {"head", "a batch element and head are chosen by --pair B,H"},
    {"device", "--device is of estimate, run and bench"},
    {"gpu", "a GPU is chosen by --backend sm90"},
    {"cuda", "a GPU is chosen by --backend sm90"},
    {"cpu", "the CPU is chosen by --backend cpu"},
    {"mask", "the mask is the operand: FILE.h5:NAME"},
    {"input", "the input is the operand, without an option"},
    {"file", "the input is the operand, without an option"},
    {"out", "the file to write is --output FILE, -o FILE"},
    {"block-size", "block sides are --block QxK"},
    {"overwrite", "replacing is --force"},
    {"append", "masks are added to a file in any case; --force replaces one of that name"},
    {"layout", "extents of a dense mask are named by --dims"},
    {"param", "parameters are tables: --table NAME=5"},
    {"arg", "parameters are tables: --table NAME=5"},
    {"expr", "the text is --spec"},
    {"silent", "summaries are turned off by --quiet"},
};

constexpr Word kValues[] = {
    {"cuda", "sm90"},
    {"gpu", "sm90"},
    {"hopper", "sm90"},
    {"host", "cpu"},
    {"numpy", "dense"},
    {"npy", "dense"},
    {"bool", "dense"},
    {"boolean", "dense"},
    {"csr", "bcsr"},
    {"bitmap", "bitset"},
    {"&", "and"},
    {"|", "or"},
    {"^", "xor"},
    {"~", "not"},
    {"-", "minus"},
    {"intersect", "and"},
    {"intersection", "and"},
    {"union", "or"},
    {"difference", "minus"},
    {"subtract", "minus"},
    {"invert", "not"},
    {"complement", "not"},
    {"flip", "transpose"},
    {"slice", "crop"},
    {"move", "shift"},
    {"huggingface", "hf_mask"},
    {"flexattention", "flex"},
    {"varlen", "cu_seqlens"},
    {"half", "float16"},
    {"float", "float32"},
    {"keep", "attend"},
    {"drop", "masked"},
};

std::optional<std::string_view> find(std::span<const Word> words, std::string_view word) {
  for (const Word& known : words) {
    if (known.other == word) return known.ours;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string_view> usual_verb(std::string_view word) { return find(kVerbs, word); }
std::optional<std::string_view> usual_option(std::string_view word) { return find(kOptions, word); }
std::optional<std::string_view> usual_value(std::string_view word) { return find(kValues, word); }

}  // namespace fdma::maskc
