// The arguments of named masks: tables of the batch element, derived tables, preconditions.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "bind/derived_tables.hpp"
#include "bind/expand_names.hpp"
#include "language/prelude.hpp"

namespace fdma {
namespace {

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

}  // namespace

TableRequest NameExpander::request(ExprId id, std::size_t argument) const {
  const ExprNode& node = checked_.node(id);
  const Parameter& parameter = checked_.fact(id).form->parameters[argument];
  const std::string& table = checked_.node(node.children[argument]).symbol;
  TableRequest wanted;
  wanted.use = parameter.is_keyword_only
                   ? fmt::format("{}({}=@{})", node.symbol, parameter.name, table)
                   : fmt::format("{}(@{})", node.symbol, table);
  wanted.table = table;
  return wanted;
}

Result<NameInstance> NameExpander::prepare(ExprId id, std::vector<NamedNumber> numbers,
                                           const BoundPair& pair) {
  const ExprNode& node = checked_.node(id);
  const NameForm& form = *checked_.fact(id).form;
  NameInstance mask;
  mask.numbers = std::move(numbers);
  FDMA_TRY_VOID(check_numbers(id, pair, mask));
  bool is_of_table = false;
  std::vector<NamedTable> sources;
  for (std::size_t i = 0; i < form.parameters.size(); ++i) {
    const Parameter& parameter = form.parameters[i];
    if (parameter.kind == ParameterKind::side)
      mask.numbers.emplace_back(parameter.name,
                                builder_.boolean(checked_.node(node.children[i]).symbol == "left"));
    if (parameter.table == TableShape::none || find_named(mask.numbers, parameter.name) != nullptr)
      continue;
    is_of_table |= parameter.kind == ParameterKind::integer_or_table;
    FDMA_TRY_VOID(read_table(id, i, pair, mask, sources));
  }
  mask.text = &prelude_expr(form, is_of_table);
  FDMA_TRY_VOID(derive(id, sources, pair, mask));
  if (form.form == MaskForm::block_diffusion || form.form == MaskForm::natten2d ||
      form.form == MaskForm::natten3d)
    FDMA_TRY_VOID(check_canvas(id, pair, mask));
  return mask;
}

// Reads the table of one argument, as its shape says, into `mask` or `sources`.
Result<void> NameExpander::read_table(ExprId id, std::size_t argument, const BoundPair& pair,
                                      NameInstance& mask, std::vector<NamedTable>& sources) {
  const Parameter& parameter = checked_.fact(id).form->parameters[argument];
  TableRequest wanted = request(id, argument);
  switch (parameter.table) {
    case TableShape::per_key:
    case TableShape::flags_per_key:
      wanted.extent_name = "kv_len";
      wanted.last_extent = shape_.max_kv_len();
      wanted.own_extent = pair.kv_len;
      wanted.is_boolean = parameter.table == TableShape::flags_per_key;
      break;
    case TableShape::per_query:
      wanted.extent_name = "q_len";
      wanted.last_extent = shape_.max_q_len();
      wanted.own_extent = pair.q_len;
      break;
    case TableShape::list:
      wanted.extent_name = parameter.extent;
      break;
    case TableShape::per_element:
      return read_per_element(id, argument, pair, mask);
    case TableShape::intervals_of_keys:
    case TableShape::intervals_of_queries:
      return argument == 0 ? read_interval_lists(id, pair, mask) : Result<void>();
    case TableShape::flags_of_tiles:
    case TableShape::flags_of_cells:
      return read_flags(id, argument, pair, mask);
    case TableShape::scores:
    case TableShape::none:
      return {};
  }
  FDMA_TRY(IrTable table, tables_.of_element(wanted, pair.b));
  sources.push_back({parameter.name, std::move(table)});
  return {};
}

// Gives the sources to the text as they are, or what the form derives from them. Derived tables
// depend on kv_len and on the sources, which differ at most from element to element.
Result<void> NameExpander::derive(ExprId id, const std::vector<NamedTable>& sources,
                                  const BoundPair& pair, NameInstance& mask) {
  Kept& kept = kept_[static_cast<std::size_t>(id)];
  std::vector<const void*> data;
  for (const NamedTable& source : sources) data.push_back(source.table.data);
  if (!kept.is_known || kept.kv_len != pair.kv_len || kept.sources != data) {
    kept = {};
    FDMA_TRY_VOID(derive_anew(id, sources, pair, kept));
    kept.is_known = true;
    kept.sources = std::move(data);
    kept.kv_len = pair.kv_len;
  }
  for (const auto& [name, table] : kept.tables)
    mask.tables.emplace_back(name, std::vector<TableRef>{table});
  for (const auto& [name, value] : kept.values)
    mask.numbers.emplace_back(name, builder_.constant(value));
  return {};
}

Result<void> NameExpander::derive_anew(ExprId id, const std::vector<NamedTable>& sources,
                                       const BoundPair& pair, Kept& kept) {
  const auto keep = [&](std::string_view name, const IrTable& table) {
    kept.tables.emplace_back(name, store_.prepare(table));
  };
  switch (checked_.fact(id).form->form) {
    case MaskForm::documents_lengths: {
      const std::string use = request(id, 0).use;
      FDMA_TRY(IrTable ids, documents_from_lengths(use, sources[0].table, pair.kv_len));
      keep("ids", ids);
      return {};
    }
    case MaskForm::documents_cu_seqlens: {
      const std::string use = request(id, 0).use;
      FDMA_TRY(IrTable ids, documents_from_bounds(use, sources[0].table, pair.kv_len));
      keep("ids", ids);
      return {};
    }
    case MaskForm::prefix_documents: {
      keep("ids", sources[0].table);
      const IrTable& ids = kept.tables[0].second->table;
      FDMA_TRY(IrTable flags, document_prefixes(request(id, 1).use, ids, sources[1].table));
      keep("in_prefix", flags);
      return {};
    }
    case MaskForm::causal_blockwise:
      keep("ids", sources[0].table);
      kept.values.emplace_back("last", last_document(kept.tables[0].second->table));
      return {};
    case MaskForm::tree: {
      FDMA_TRY(TreeOrder order, tree_order(request(id, 0).use, sources[0].table));
      keep("entry", order.entry);
      keep("exit", order.exit);
      kept.values.emplace_back("before", pair.kv_len - sources[0].table.extents[0]);
      return {};
    }
    default:
      for (const NamedTable& source : sources) keep(source.name, source.table);
      return {};
  }
}

Result<void> NameExpander::read_per_element(ExprId id, std::size_t argument, const BoundPair& pair,
                                            NameInstance& mask) {
  TableRequest wanted = request(id, argument);
  wanted.rank = 0;
  FDMA_TRY(IrTable own, tables_.of_element(wanted, pair.b));
  const std::int64_t entry = own.at(0);
  if (entry < 0 || entry > pair.kv_len)
    return invalid(fmt::format("{}: entry {} of table '{}': expected 0 to kv_len = {}, got {}",
                               wanted.use, pair.b, wanted.table, pair.kv_len, entry));
  mask.numbers.emplace_back(checked_.fact(id).form->parameters[argument].name,
                            builder_.constant(entry));
  return {};
}

// The first `rows` x `columns` entries. They share the storage unless at(..) might read entries
// that the element does not have.
IrTable NameExpander::cut(IrTable table, std::int64_t rows, std::int64_t columns) const {
  const std::int64_t stride = table.extents[1];
  table.extents[0] = rows;
  if (columns == stride || !checked_.has_at) return table;
  const auto bytes = static_cast<std::size_t>(size_bytes(table.dtype));
  auto copy = std::make_shared<std::vector<std::byte>>();
  copy->resize(static_cast<std::size_t>(rows * columns) * bytes + 1);
  for (std::int64_t row = 0; row < rows; ++row)
    std::memcpy(
        copy->data() + static_cast<std::size_t>(row * columns) * bytes,
        static_cast<const std::byte*>(table.data) + static_cast<std::size_t>(row * stride) * bytes,
        static_cast<std::size_t>(columns) * bytes);
  table.extents[1] = columns;
  table.data = copy->data();
  table.owner = std::move(copy);
  return table;
}

Result<void> NameExpander::read_interval_lists(ExprId id, const BoundPair& pair,
                                               NameInstance& mask) {
  const NameForm& form = *checked_.fact(id).form;
  const bool by_key = form.parameters[0].table == TableShape::intervals_of_keys;
  const std::int64_t own = by_key ? pair.kv_len : pair.q_len;
  IrTable lists[2];
  for (std::size_t i = 0; i < 2; ++i) {
    TableRequest wanted = request(id, i);
    wanted.extent_name = by_key ? "kv_len" : "q_len";
    wanted.last_extent = by_key ? shape_.max_kv_len() : shape_.max_q_len();
    if (tables_.whole(wanted.table).rank != 1) {
      wanted.rank = 2;
    } else {
      wanted.own_extent = wanted.last_extent;
    }
    FDMA_TRY(lists[i], tables_.of_element(wanted, pair.b));
    if (lists[i].rank == 1) {
      lists[i].rank = 2;
      lists[i].extents[1] = lists[i].extents[0];
      lists[i].extents[0] = 1;
    }
  }
  const std::int64_t count = lists[0].extents[0];
  if (lists[1].extents[0] != count)
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: {} intervals, but {} has {}", request(id, 0).use, count,
                             request(id, 1).use, lists[1].extents[0])};
  mask.numbers.emplace_back("n", builder_.constant(count));
  for (std::size_t side = 0; side < 2; ++side) {
    std::vector<TableRef> tables;
    if (count > kMostIntervalsWrittenOut) tables = {store_.prepare(cut(lists[side], count, own))};
    for (std::int64_t i = 0; i < count && count <= kMostIntervalsWrittenOut; ++i) {
      IrTable row = slice_of(lists[side], i);
      row.extents[0] = own;
      if (count > 1) row.name += fmt::format("[{}]", i);
      tables.push_back(store_.prepare(row));
    }
    mask.tables.emplace_back(form.parameters[side].name, std::move(tables));
  }
  return {};
}

Result<void> NameExpander::read_flags(ExprId id, std::size_t argument, const BoundPair& pair,
                                      NameInstance& mask) {
  const Parameter& parameter = checked_.fact(id).form->parameters[argument];
  const std::string use = request(id, argument).use;
  const std::string name = request(id, argument).table;
  IrTable table = tables_.whole(name);
  const bool is_bits = parameter.table == TableShape::flags_of_cells;
  const std::int64_t q_len = shape_.max_q_len(), kv_len = shape_.max_kv_len();
  if (table.dtype != DType::boolean)
    return invalid(fmt::format("{}: table '{}': expected boolean entries, got {}", use, name,
                               describe(table)));
  const bool batch_fits = table.rank < 3 || table.extents[0] == shape_.num_batches;
  const bool head_fits = table.rank < 4 || table.extents[1] == shape_.num_heads;
  const auto side_of = [&](std::string_view which) {
    return is_bits ? 1 : builder_.node(*find_named(mask.numbers, which)).value;
  };
  const std::int64_t m = side_of("m"), n = side_of("n");
  const auto num_tiles = [](std::int64_t length, std::int64_t side) {
    return length / side + (length % side != 0 ? 1 : 0);
  };
  const std::int64_t rows = num_tiles(q_len, m), columns = num_tiles(kv_len, n);
  const bool cells_fit = table.rank < 2 || (table.extents[table.rank - 2] == rows &&
                                            table.extents[table.rank - 1] == columns);
  if (table.rank < 2 || !batch_fits || !head_fits || !cells_fit) {
    const std::string cells =
        is_bits ? fmt::format("q_len = {}, kv_len = {}", q_len, kv_len)
                : fmt::format("ceil(q_len / {}) = {}, ceil(kv_len / {}) = {}", m, rows, n, columns);
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("{}: table '{}': expected [{}], [batch = {}, ..] or [batch, heads = {}, ..], "
                    "got {}",
                    use, name, cells, shape_.num_batches, shape_.num_heads, describe(table))};
  }
  if (table.rank >= 3) table = slice_of(table, pair.b);
  if (table.rank == 3) table = slice_of(table, pair.h);
  if (is_bits) table = cut(table, pair.q_len, pair.kv_len);
  mask.tables.emplace_back(parameter.name, std::vector<TableRef>{store_.prepare(table)});
  return {};
}

}  // namespace fdma
