// --table: tables from HDF5 datasets and from the command line itself (spec_source.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "cli/file_reading.hpp"
#include "fdma/io/array_file.hpp"
#include "inputs/file_listing.hpp"
#include "inputs/mask_operand.hpp"
#include "inputs/spec_source.hpp"
#include "inputs/zoh_table.hpp"

namespace fdma::maskc {
namespace {

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(trim(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

struct Entry {
  std::int64_t value;
  bool is_boolean;
};

std::optional<Entry> parse_entry(std::string_view word) {
  if (word == "true") return Entry{1, true};
  if (word == "false") return Entry{0, true};
  const auto value = parse_count(word);
  if (!value) return {};
  return Entry{*value, false};
}

// Rows of entries; an empty last word after a trailing comma or semicolon is dropped.
struct InlineTable {
  std::vector<std::vector<Entry>> rows;
  bool is_list = false;  // a comma or semicolon was written
};

std::string entry_count(const std::vector<Entry>& row) {
  return fmt::format("{} entr{}", row.size(), row.size() == 1 ? "y" : "ies");
}

Outcome<InlineTable> parse_inline(const std::string& name, std::string_view text) {
  InlineTable table;
  std::vector<std::string_view> rows = split(text, ';');
  table.is_list = text.find_first_of(",;") != std::string_view::npos;
  if (rows.size() > 1 && rows.back().empty()) rows.pop_back();
  for (std::string_view row : rows) {
    std::vector<std::string_view> words = split(row, ',');
    if (words.size() > 1 && words.back().empty()) words.pop_back();
    std::vector<Entry> entries;
    for (std::string_view word : words) {
      const auto entry = parse_entry(word);
      if (!entry) {
        return usage_failure(fmt::format(
            "--table {}: expected a 64-bit whole number, true or false, got '{}'{}", name, word,
            word.find(' ') != std::string_view::npos ? "; commas separate entries" : ""));
      }
      entries.push_back(*entry);
      if (entry->is_boolean !=
          (table.rows.empty() ? entries : table.rows.front()).front().is_boolean) {
        return usage_failure(fmt::format("--table {}: mixes numbers with true and false", name));
      }
    }
    if (!table.rows.empty() && entries.size() != table.rows.front().size()) {
      return usage_failure(fmt::format("--table {}: row {} has {}, row 0 has {}", name,
                                       table.rows.size(), entry_count(entries),
                                       entry_count(table.rows.front())));
    }
    table.rows.push_back(std::move(entries));
  }
  return table;
}

OwnedTable make_owned(const InlineTable& table, int rank) {
  OwnedTable owned;
  const bool is_boolean = table.rows.front().front().is_boolean;
  owned.dtype = is_boolean ? DType::boolean : DType::int64;
  owned.rank = rank;
  if (rank == 2) {
    owned.extents[0] = static_cast<std::int64_t>(table.rows.size());
    owned.extents[1] = static_cast<std::int64_t>(table.rows.front().size());
  } else if (rank == 1) {
    owned.extents[0] = static_cast<std::int64_t>(table.rows.front().size());
  }
  for (const auto& row : table.rows) {
    for (const Entry& entry : row) {
      const auto* first = reinterpret_cast<const std::byte*>(&entry.value);
      if (is_boolean) {
        owned.bytes.push_back(static_cast<std::byte>(entry.value));
      } else {
        owned.bytes.insert(owned.bytes.end(), first, first + sizeof entry.value);
      }
    }
  }
  return owned;
}

// The rank of a table with one entry, decided by how the specification uses the table.
int rank_of_single_entry(const MaskExpr& expr, std::string_view name) {
  for (const ExprNode& node : expr.nodes()) {
    if (node.op == ExprOp::table && node.symbol == name && !node.children.empty()) {
      return std::min<int>(static_cast<int>(node.children.size()), 2);
    }
    if (node.op != ExprOp::named) continue;
    for (std::size_t i = 0; i < node.children.size() && i < node.arg_names.size(); ++i) {
      const ExprNode& argument = expr.node(node.children[i]);
      if (argument.op == ExprOp::table && argument.symbol == name && !node.arg_names[i].empty()) {
        return 1;
      }
    }
  }
  return 0;
}

bool is_inline(std::string_view value) {
  const std::string_view word = trim(value.substr(0, value.find_first_of(",;")));
  return parse_entry(word).has_value() ||
         value.find_first_not_of("+-0123456789,; ") == std::string_view::npos;
}

bool is_scores_of_topk(const MaskExpr& expr, std::string_view name) {
  return std::any_of(expr.nodes().begin(), expr.nodes().end(), [&](const ExprNode& node) {
    if (node.op != ExprOp::named || node.symbol != "topk" || node.children.empty()) return false;
    const ExprNode& scores = expr.node(node.children.front());
    return scores.op == ExprOp::table && scores.symbol == name;
  });
}

Outcome<OwnedTable> read_one(const std::string& name, const std::string& value,
                             const MaskExpr& expr, bool casts) {
  if (is_zoh_call(value)) return zoh_table(name, value);
  if (value.starts_with('[') || value.starts_with('(')) {
    return usage_failure(fmt::format(
        "--table {0}: entries stand without brackets, {0}=0,1,127; semicolons separate rows; got "
        "'{1}'",
        name, value));
  }
  if (is_inline(value)) {
    FDMA_TRY(const InlineTable table, parse_inline(name, value));
    int rank = table.rows.size() > 1 ? 2 : 1;
    if (table.rows.size() == 1 && table.rows.front().size() == 1 && !table.is_list) {
      rank = rank_of_single_entry(expr, name);
    }
    return make_owned(table, rank);
  }
  MaskAddress address = parse_address(value);
  if (address.inner.empty() && is_array_file(address.file)) address.inner = "/";
  if (address.inner.empty() || address.file.empty()) {
    return usage_failure(
        fmt::format("--table {}: expected FILE.h5:/DATASET, or entries such as 0,1,127; got '{}'{}",
                    name, value, file_listing(address.file, {}, Wanted::table)));
  }
  const TableCast cast = !casts                          ? TableCast::none
                         : is_scores_of_topk(expr, name) ? TableCast::scores
                                                         : TableCast::numbers;
  Result<OwnedTable> table = read_table_file(address.file, address.inner, cast);
  if (!table) {
    const std::string dataset = (address.inner.starts_with('/') ? "" : "/") + address.inner;
    Error error = with_listing(table.error(), address.file, dataset, Wanted::table);
    error.message.insert(0, fmt::format("--table {}: ", name));
    return error;
  }
  return *std::move(table);
}

}  // namespace

Tables OwnedTables::views() const {
  Tables tables;
  for (const auto& [name, table] : owned) tables.emplace(name, table.view());
  return tables;
}

Outcome<OwnedTables> read_tables(const std::vector<std::string>& arguments, const MaskExpr& expr,
                                 bool casts) {
  const std::vector<std::string> wanted = table_names(expr);
  OwnedTables tables;
  for (const std::string& argument : arguments) {
    const std::size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0) {
      return usage_failure(fmt::format(
          "--table: expected NAME=FILE.h5:/DATASET or NAME=0,1,127, got '{}'", argument));
    }
    std::string name = argument.substr(argument.front() == '@' ? 1 : 0, equals);
    name.resize(equals - (argument.front() == '@' ? 1 : 0));
    if (tables.owned.count(name) != 0) {
      return usage_failure(fmt::format("--table {}: given more than once", name));
    }
    if (std::find(wanted.begin(), wanted.end(), name) == wanted.end()) {
      return usage_failure(
          fmt::format("--table {}: the specification mentions no table @{}{}", name, name,
                      wanted.empty() ? "" : fmt::format("; it has @{}", fmt::join(wanted, ", @"))));
    }
    FDMA_TRY(OwnedTable table, read_one(name, argument.substr(equals + 1), expr, casts));
    tables.owned.emplace(std::move(name), std::move(table));
  }
  std::vector<std::string> missing;
  for (const std::string& name : wanted) {
    if (tables.owned.find(name) == tables.owned.end()) missing.push_back(name);
  }
  if (!missing.empty()) {
    return usage_failure(fmt::format(
        "the specification needs {} @{}: give --table {}=FILE.h5:/DATASET or --table {}=0,1,127",
        missing.size() == 1 ? "table" : "tables", fmt::join(missing, ", @"), missing.front(),
        missing.front()));
  }
  return tables;
}

}  // namespace fdma::maskc
