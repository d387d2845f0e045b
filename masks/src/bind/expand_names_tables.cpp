// The arguments of named masks: tables of the batch element, derived tables, preconditions.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "bind/derived_tables.hpp"
#include "bind/expand_names.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kMostIntervalsWrittenOut = 64;

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

Result<NameInstance> NameExpander::prepare(ExprId id, std::vector<IrId> numbers,
                                           const BoundPair& pair) {
  const ExprNode& node = checked_.node(id);
  NameInstance mask;
  mask.form = checked_.fact(id).form->form;
  mask.numbers = std::move(numbers);
  if (mask.form == MaskForm::padding_side)
    mask.is_left = checked_.node(node.children[1]).symbol == "left";
  FDMA_TRY_VOID(check_numbers(id, pair, mask));
  FDMA_TRY_VOID(read_tables(id, pair, mask));
  if (mask.form == MaskForm::block_diffusion || mask.form == MaskForm::natten2d) {
    FDMA_TRY_VOID(check_canvas(id, pair, mask));
    mask.values = {pair.kv_len};
  }
  return mask;
}

Result<void> NameExpander::read_tables(ExprId id, const BoundPair& pair, NameInstance& mask) {
  const auto per_key = [&](std::size_t argument) {
    TableRequest wanted = request(id, argument);
    wanted.extent_name = "kv_len";
    wanted.last_extent = shape_.max_kv_len();
    wanted.own_extent = pair.kv_len;
    return wanted;
  };
  const auto list_of = [&](std::size_t argument, std::string_view extent_name) {
    TableRequest wanted = request(id, argument);
    wanted.extent_name = extent_name;
    return wanted;
  };
  switch (mask.form) {
    case MaskForm::documents_ids: {
      FDMA_TRY(IrTable ids, tables_.of_element(per_key(0), pair.b));
      mask.tables = {store_.prepare(ids)};
      return {};
    }
    case MaskForm::causal_blockwise: {
      FDMA_TRY(IrTable ids, tables_.of_element(per_key(0), pair.b));
      return derive(id, {ids}, pair, mask);
    }
    case MaskForm::documents_lengths: {
      FDMA_TRY(IrTable lengths, tables_.of_element(list_of(0, "docs"), pair.b));
      return derive(id, {lengths}, pair, mask);
    }
    case MaskForm::documents_cu_seqlens: {
      FDMA_TRY(IrTable bounds, tables_.of_element(list_of(0, "docs + 1"), pair.b));
      return derive(id, {bounds}, pair, mask);
    }
    case MaskForm::documents_q_k_ids: {
      TableRequest wanted = request(id, 0);
      wanted.extent_name = "q_len";
      wanted.last_extent = shape_.max_q_len();
      wanted.own_extent = pair.q_len;
      FDMA_TRY(IrTable q_ids, tables_.of_element(wanted, pair.b));
      FDMA_TRY(IrTable k_ids, tables_.of_element(per_key(1), pair.b));
      mask.tables = {store_.prepare(q_ids), store_.prepare(k_ids)};
      return {};
    }
    case MaskForm::prefix_documents: {
      FDMA_TRY(IrTable ids, tables_.of_element(per_key(0), pair.b));
      FDMA_TRY(IrTable prefix, tables_.of_element(list_of(1, "docs"), pair.b));
      return derive(id, {ids, prefix}, pair, mask);
    }
    case MaskForm::share_question: {
      FDMA_TRY(IrTable ids, tables_.of_element(per_key(0), pair.b));
      FDMA_TRY(IrTable parts, tables_.of_element(per_key(1), pair.b));
      mask.tables = {store_.prepare(ids), store_.prepare(parts)};
      return {};
    }
    case MaskForm::global: {
      if (!mask.numbers.empty()) return {};
      TableRequest wanted = per_key(0);
      wanted.is_boolean = true;
      FDMA_TRY(IrTable flags, tables_.of_element(wanted, pair.b));
      mask.tables = {store_.prepare(flags)};
      return {};
    }
    case MaskForm::prefix:
    case MaskForm::padding:
    case MaskForm::padding_side:
      return read_per_element(id, pair, mask);
    case MaskForm::intervals:
    case MaskForm::rows:
      return read_interval_lists(id, pair, mask);
    case MaskForm::tiles:
    case MaskForm::bits:
      return read_dense(id, pair, mask);
    case MaskForm::tree: {
      FDMA_TRY(IrTable parents, tables_.of_element(list_of(0, "n"), pair.b));
      return derive(id, {parents}, pair, mask);
    }
    default:
      return {};
  }
}

// Makes the derived tables. They depend on kv_len and on the sources, which differ at most from
// element to element.
Result<void> NameExpander::derive(ExprId id, const std::vector<IrTable>& sources,
                                  const BoundPair& pair, NameInstance& mask) {
  Kept& kept = kept_[static_cast<std::size_t>(id)];
  const void* const second = sources.size() > 1 ? sources[1].data : nullptr;
  if (kept.is_known && kept.kv_len == pair.kv_len && kept.data[0] == sources[0].data &&
      kept.data[1] == second) {
    mask.tables = kept.tables;
    mask.values = kept.values;
    return {};
  }
  kept.is_known = false;
  const std::string name = request(id, 0).use;
  switch (mask.form) {
    case MaskForm::documents_lengths: {
      FDMA_TRY(IrTable runs, documents_from_lengths(name, sources[0], pair.kv_len));
      mask.tables = {store_.prepare(runs)};
      break;
    }
    case MaskForm::documents_cu_seqlens: {
      FDMA_TRY(IrTable runs, documents_from_bounds(name, sources[0], pair.kv_len));
      mask.tables = {store_.prepare(runs)};
      break;
    }
    case MaskForm::prefix_documents: {
      const TableRef ids = store_.prepare(sources[0]);
      FDMA_TRY(IrTable flags, document_prefixes(request(id, 1).use, ids->table, sources[1]));
      mask.tables = {ids, store_.prepare(flags)};
      break;
    }
    case MaskForm::causal_blockwise:
      mask.tables = {store_.prepare(sources[0])};
      mask.values = {last_document(mask.tables[0]->table)};
      break;
    default: {
      FDMA_TRY(TreeOrder order, tree_order(name, sources[0]));
      mask.tables = {store_.prepare(order.entry), store_.prepare(order.exit)};
      mask.values = {pair.kv_len - sources[0].extents[0]};
      break;
    }
  }
  kept.is_known = true;
  kept.data[0] = sources[0].data;
  kept.data[1] = second;
  kept.kv_len = pair.kv_len;
  kept.tables = mask.tables;
  kept.values = mask.values;
  return {};
}

Result<void> NameExpander::read_per_element(ExprId id, const BoundPair& pair, NameInstance& mask) {
  if (!mask.numbers.empty()) return {};
  TableRequest wanted = request(id, 0);
  wanted.rank = 0;
  FDMA_TRY(IrTable own, tables_.of_element(wanted, pair.b));
  const std::int64_t entry = own.at(0);
  if (entry < 0 || entry > pair.kv_len)
    return invalid(fmt::format("{}: entry {} of table '{}': expected 0 to kv_len = {}, got {}",
                               wanted.use, pair.b, wanted.table, pair.kv_len, entry));
  mask.numbers = {builder_.constant(entry)};
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
  const bool by_key = mask.form == MaskForm::intervals;
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
  if (count > kMostIntervalsWrittenOut) {
    mask.tables = {store_.prepare(cut(lists[0], count, own)),
                   store_.prepare(cut(lists[1], count, own))};
    mask.values = {count};
    return {};
  }
  for (std::int64_t i = 0; i < count; ++i) {
    for (const IrTable& list : lists) {
      IrTable row = slice_of(list, i);
      row.extents[0] = own;
      if (count > 1) row.name += fmt::format("[{}]", i);
      mask.tables.push_back(store_.prepare(row));
    }
  }
  return {};
}

Result<void> NameExpander::read_dense(ExprId id, const BoundPair& pair, NameInstance& mask) {
  const std::string use = request(id, 0).use;
  const std::string name = request(id, 0).table;
  IrTable table = tables_.whole(name);
  const bool is_bits = mask.form == MaskForm::bits;
  const std::int64_t q_len = shape_.max_q_len(), kv_len = shape_.max_kv_len();
  if (table.dtype != DType::boolean)
    return invalid(fmt::format("{}: table '{}': expected boolean entries, got {}", use, name,
                               describe(table)));
  const bool batch_fits = table.rank < 3 || table.extents[0] == shape_.num_batches;
  const bool head_fits = table.rank < 4 || table.extents[1] == shape_.num_heads;
  const std::int64_t m = is_bits ? 1 : builder_.node(mask.numbers[0]).value;
  const std::int64_t n = is_bits ? 1 : builder_.node(mask.numbers[1]).value;
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
  mask.tables = {store_.prepare(table)};
  return {};
}

}  // namespace fdma
