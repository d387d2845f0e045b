// This file is longer than most test files because every named mask has its case here. One can read
// it beside the table of names in docs/spec-language.md.
#include "oracle_named.hpp"

#include <cstddef>
#include <string>

#include "oracle_tables.hpp"

namespace fdma::reference {
namespace {

Error invalid(const std::string& message) {
  return Error{ErrorCode::invalid_argument, "oracle: " + message};
}

Value element(const std::vector<std::int64_t>& values, Value index) {
  if (!index.is_defined || index.value < 0 ||
      index.value >= static_cast<std::int64_t>(values.size()))
    return kUndefined;
  return integer(values[static_cast<std::size_t>(index.value)]);
}

}  // namespace

struct NamedMask::Source {
  const MaskExpr& expr;
  const ExprNode& node;
  const NameForm& form;
  const Tables& bound;
  const MaskShape& shape;
  std::int64_t b, h;

  const std::string& table_name(std::size_t argument) const {
    return expr.node(node.children[argument]).symbol;
  }
  TableRequest request(std::size_t argument) const {
    TableRequest wanted;
    wanted.name = table_name(argument);
    wanted.purpose = std::string(form.name) + "." + std::string(form.parameters[argument].name);
    return wanted;
  }
  Result<TensorView> get(const TableRequest& wanted) const {
    return table_of_element(bound, wanted, shape, b);
  }
  /// An integer or boolean table [kv_len].
  Result<TensorView> per_key(std::size_t argument, bool is_boolean = false) const {
    TableRequest wanted = request(argument);
    wanted.last_extent = shape.max_kv_len();
    wanted.own_extent = shape.kv_len(b);
    wanted.is_boolean = is_boolean;
    return get(wanted);
  }
  /// The entry for this batch element in an integer table [batch].
  Result<Value> per_element(std::size_t argument) const {
    TableRequest wanted = request(argument);
    FDMA_TRY(TensorView whole, find_table(bound, wanted.name));
    wanted.rank = 0;
    FDMA_TRY(TensorView own, get(wanted));
    if (whole.rank != 1)
      return Error{ErrorCode::shape_mismatch, "oracle: " + wanted.purpose + ": not [batch]"};
    return read(own, {});
  }
};

Result<NamedMask> NamedMask::make(const MaskExpr& expr, ExprId id, const Tables& tables,
                                  const MaskShape& shape, std::int64_t b, std::int64_t h,
                                  const std::function<Value(ExprId)>& evaluate) {
  const ExprNode& node = expr.node(id);
  const NameForm* form = form_of(node);
  if (form == nullptr) return invalid("unknown form of " + node.symbol);
  if (form->form == MaskForm::topk)
    return Error{ErrorCode::unsupported, "oracle: topk is no mask of its arguments alone"};
  NamedMask mask;
  mask.form_ = form->form;
  mask.q_len_ = integer(shape.q_len(b));
  mask.kv_len_ = integer(shape.kv_len(b));
  for (std::size_t i = 0; i < form->parameters.size(); ++i) {
    const ExprNode& child = expr.node(node.children[i]);
    const ParameterKind kind = form->parameters[i].kind;
    const bool is_infinite = child.op == ExprOp::variable && child.symbol == "inf";
    bool is_integer = kind == ParameterKind::integer || kind == ParameterKind::integer_or_inf;
    if (kind == ParameterKind::integer_or_table) {
      is_integer = child.op != ExprOp::table || !child.children.empty();
      if (!is_integer) {
        FDMA_TRY(TensorView table, find_table(tables, child.symbol));
        is_integer = table.rank == 0;
      }
    }
    if (is_integer) {
      mask.numbers_.push_back(is_infinite ? kUndefined : evaluate(node.children[i]));
      mask.is_infinite_.push_back(is_infinite);
    }
    if (kind == ParameterKind::side) mask.is_left_ = child.symbol == "left";
  }
  FDMA_TRY_VOID(mask.check_numbers());
  FDMA_TRY_VOID(mask.read_arguments(Source{expr, node, *form, tables, shape, b, h}));
  return mask;
}

// Checks the ranges of integer arguments that the sentence below the table of names states.
Result<void> NamedMask::check_numbers() const {
  const auto must_be = [&](std::size_t argument, std::int64_t least) -> Result<void> {
    if (argument >= numbers_.size() || is_infinite_[argument] || !numbers_[argument].is_defined)
      return {};
    if (numbers_[argument].value >= least) return {};
    return invalid("an argument below " + std::to_string(least));
  };
  switch (form_) {
    case MaskForm::window:
      return must_be(0, 1);
    case MaskForm::window_pair:
      FDMA_TRY_VOID(must_be(0, 0));
      return must_be(1, 0);
    case MaskForm::dilated:
      FDMA_TRY_VOID(must_be(0, 1));
      return must_be(1, 1);
    case MaskForm::sink:
    case MaskForm::global:
      return must_be(0, 0);
    case MaskForm::prefix:
      return numbers_.empty() ? Result<void>() : check_length(numbers_[0]);
    case MaskForm::tiles:
      if (!numbers_[0].is_defined || !numbers_[1].is_defined)
        return invalid("tiles: m or n is undefined");
      FDMA_TRY_VOID(must_be(0, 1));
      return must_be(1, 1);
    default:
      return {};
  }
}

// Checks a length, prefix or padding of this batch element.
Result<void> NamedMask::check_length(Value length) const {
  if (!length.is_defined || (length.value >= 0 && length.value <= kv_len_.value)) return {};
  return invalid("a length is below 0 or above kv_len");
}

Result<void> NamedMask::read_arguments(const Source& source) {
  switch (form_) {
    case MaskForm::documents_ids:
    case MaskForm::documents_lengths:
    case MaskForm::documents_cu_seqlens:
    case MaskForm::causal_blockwise:
      return read_documents(source);
    case MaskForm::prefix_documents:
      FDMA_TRY_VOID(read_documents(source));
      return read_prefix_documents(source);
    case MaskForm::share_question: {
      FDMA_TRY_VOID(read_documents(source));
      FDMA_TRY(TensorView parts, source.per_key(1));
      tables_ = {parts};
      return {};
    }
    case MaskForm::documents_q_k_ids: {
      TableRequest wanted = source.request(0);
      wanted.last_extent = source.shape.max_q_len();
      wanted.own_extent = source.shape.q_len(source.b);
      FDMA_TRY(TensorView q_ids, source.get(wanted));
      FDMA_TRY(TensorView k_ids, source.per_key(1));
      tables_ = {q_ids, k_ids};
      return {};
    }
    case MaskForm::prefix:
      if (numbers_.empty()) {
        FDMA_TRY(Value p, source.per_element(0));
        FDMA_TRY_VOID(check_length(p));
        numbers_ = {p};
      }
      return {};
    case MaskForm::padding:
    case MaskForm::padding_side: {
      FDMA_TRY(Value length, source.per_element(0));
      FDMA_TRY_VOID(check_length(length));
      numbers_ = {length};
      return {};
    }
    case MaskForm::global:
      if (numbers_.empty()) {
        FDMA_TRY(TensorView table, source.per_key(0, true));
        tables_ = {table};
      }
      return {};
    case MaskForm::intervals:
    case MaskForm::rows:
      for (std::size_t i = 0; i < 2; ++i) {
        TableRequest wanted = source.request(i);
        const bool by_key = form_ == MaskForm::intervals;
        wanted.last_extent = by_key ? source.shape.max_kv_len() : source.shape.max_q_len();
        wanted.own_extent = by_key ? source.shape.kv_len(source.b) : source.shape.q_len(source.b);
        FDMA_TRY(TensorView table, find_table(source.bound, wanted.name));
        wanted.rank = table.rank == 1 ? 1 : 2;
        FDMA_TRY(TensorView own, source.get(wanted));
        if (own.rank == 1) {  // one interval for each key or query: [1, n]
          own.rank = 2;
          own.extents = {1, own.extents[0], 1, 1};
          own.strides = {0, own.strides[0], 0, 0};
        }
        tables_.push_back(own);
      }
      if (tables_[0].extents[0] != tables_[1].extents[0])
        return Error{ErrorCode::shape_mismatch, "oracle: begin and end differ in extents"};
      return {};
    case MaskForm::tiles:
    case MaskForm::bits:
      return read_tiles(source);
    case MaskForm::tree:
      return read_tree(source);
    case MaskForm::block_diffusion:
      if (!numbers_[0].is_defined || !equal(kv_len_, mul(integer(2), numbers_[0])).is_true())
        return invalid("block_diffusion: kv_len is not 2 * n");
      return {};
    case MaskForm::natten2d: {
      const Value canvas = mul(numbers_[0], numbers_[1]);
      if (!equal(kv_len_, canvas).is_true() || numbers_[0].value < 0)
        return invalid("natten2d: kv_len is not height * width");
      if (!less_equal(numbers_[2], numbers_[0]).is_true() ||
          !less_equal(numbers_[3], numbers_[1]).is_true())
        return invalid("natten2d: window larger than the canvas");
      if (numbers_[2].value < 0 || numbers_[3].value < 0)
        return invalid("natten2d: a side of the window is below 0");
      return {};
    }
    case MaskForm::natten3d: {
      const Value volume = mul(numbers_[0], mul(numbers_[1], numbers_[2]));
      if (!equal(kv_len_, volume).is_true() || numbers_[0].value < 0 || numbers_[1].value < 0)
        return invalid("natten3d: kv_len is not depth * height * width");
      for (std::size_t i = 0; i < 3; ++i) {
        if (!less_equal(numbers_[i + 3], numbers_[i]).is_true())
          return invalid("natten3d: window larger than the volume");
      }
      for (std::size_t i = 3; i < 6; ++i) {
        if (numbers_[i].value < 0) return invalid("natten3d: a side of the window is below 0");
      }
      return {};
    }
    default:
      return {};
  }
}

Result<void> NamedMask::read_documents(const Source& source) {
  const std::int64_t kv_len = kv_len_.value;
  if (form_ == MaskForm::documents_lengths || form_ == MaskForm::documents_cu_seqlens) {
    FDMA_TRY(TensorView table, source.get(source.request(0)));
    std::vector<std::int64_t> lengths = read_all(table);
    if (form_ == MaskForm::documents_cu_seqlens) {
      if (lengths.empty() || lengths[0] != 0) return invalid("cu_seqlens does not begin with 0");
      for (std::size_t d = 0; d + 1 < lengths.size(); ++d) lengths[d] = lengths[d + 1] - lengths[d];
      lengths.pop_back();
    }
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      if (lengths[d] < 0) return invalid("documents: a length is negative");
      if (lengths[d] > kv_len - static_cast<std::int64_t>(ids_.size()))
        return invalid("documents: the lengths add up to more than kv_len");
      ids_.insert(ids_.end(), static_cast<std::size_t>(lengths[d]), static_cast<std::int64_t>(d));
    }
    ids_.resize(static_cast<std::size_t>(kv_len), -1);
    return {};
  }
  FDMA_TRY(TensorView table, source.per_key(0));
  ids_ = read_all(table);
  for (const std::int64_t document : ids_)
    if (document >= 0) last_id_ = integer(document);
  return {};
}

Result<void> NamedMask::read_prefix_documents(const Source& source) {
  FDMA_TRY(TensorView prefix, source.get(source.request(1)));
  tables_ = {prefix};
  for (const std::int64_t length : read_all(prefix)) FDMA_TRY_VOID(check_length(integer(length)));
  std::vector<std::int64_t> seen(static_cast<std::size_t>(prefix.extents[0]), 0);
  for (const std::int64_t document : ids_) {
    if (document >= prefix.extents[0]) return invalid("prefix_documents: an id is not below docs");
    order_.push_back(document < 0 ? 0 : seen[static_cast<std::size_t>(document)]++);
  }
  return {};
}

Result<void> NamedMask::read_tree(const Source& source) {
  FDMA_TRY(TensorView table, source.get(source.request(0)));
  parents_ = read_all(table);
  const auto num_nodes = static_cast<std::int64_t>(parents_.size());
  for (const std::int64_t parent : parents_)
    if (parent < -1 || parent >= num_nodes) return invalid("tree: a parent is not a node or -1");
  // 0: unknown, 1: on the path that is being followed, 2: leads to a root.
  std::vector<std::uint8_t> state(parents_.size(), 0);
  for (std::int64_t start = 0; start < num_nodes; ++start) {
    const auto walk = [&](std::uint8_t from, std::uint8_t to) {
      std::int64_t node = start;
      while (node >= 0 && state[static_cast<std::size_t>(node)] == from) {
        state[static_cast<std::size_t>(node)] = to;
        node = parents_[static_cast<std::size_t>(node)];
      }
      return node;
    };
    const std::int64_t stop = walk(0, 1);
    if (stop >= 0 && state[static_cast<std::size_t>(stop)] == 1)
      return invalid("tree: the parents form a cycle");
    walk(1, 2);
  }
  is_marked_.resize(parents_.size(), 0);
  return {};
}

Result<void> NamedMask::read_tiles(const Source& source) {
  const std::string& name = source.table_name(0);
  FDMA_TRY(TensorView table, find_table(source.bound, name));
  if (table.dtype != DType::boolean) return invalid("table @" + name + " is not boolean");
  const auto mismatch = [&] {
    return Error{ErrorCode::shape_mismatch, "oracle: table @" + name + " has the wrong shape"};
  };
  if (table.rank < 2 || table.rank > 4) return mismatch();
  if (table.rank >= 3) {
    if (table.extents[0] != source.shape.num_batches) return mismatch();
    table = drop_front(table, source.b);
  }
  if (table.rank == 3) {
    if (table.extents[0] != source.shape.num_heads) return mismatch();
    table = drop_front(table, source.h);
  }
  if (form_ == MaskForm::bits) {
    if (table.extents[0] != source.shape.max_q_len() ||
        table.extents[1] != source.shape.max_kv_len())
      return mismatch();
    table.extents[0] = q_len_.value;
    table.extents[1] = kv_len_.value;
  } else {
    const auto num_tiles = [](std::int64_t length, std::int64_t side) {
      return length == 0 ? 0 : (length - 1) / side + 1;
    };
    if (table.extents[0] != num_tiles(source.shape.max_q_len(), numbers_[0].value) ||
        table.extents[1] != num_tiles(source.shape.max_kv_len(), numbers_[1].value))
      return mismatch();
  }
  tables_ = {table};
  return {};
}

Value NamedMask::id(Value key) const { return element(ids_, key); }

Value NamedMask::same_document(Value pos, Value k) const {
  const Value pos_has_id =
      logical_and(within(integer(0), pos, kv_len_), less_equal(integer(0), id(pos)));
  const Value k_has_id = less_equal(integer(0), id(k));
  return logical_and(logical_and(pos_has_id, k_has_id), equal(id(pos), id(k)));
}

Value NamedMask::tree_node(Value node, Value of) const {
  if (!of.is_defined || !node.is_defined) return kUndefined;
  if (of.value < 0 || of.value >= static_cast<std::int64_t>(parents_.size())) return kUndefined;
  if (marked_node_ != of.value) {
    const auto mark = [&](std::int64_t start, std::uint8_t value) {
      for (std::int64_t i = start; i >= 0; i = parents_[static_cast<std::size_t>(i)])
        is_marked_[static_cast<std::size_t>(i)] = value;
    };
    mark(marked_node_, 0);
    mark(of.value, 1);
    marked_node_ = of.value;
  }
  if (node.value < 0 || node.value >= static_cast<std::int64_t>(parents_.size())) return kUndefined;
  return condition(is_marked_[static_cast<std::size_t>(node.value)] != 0);
}

Value NamedMask::natten(Value pos, Value k) const {
  const Value height = numbers_[0], width = numbers_[1], kh = numbers_[2], kw = numbers_[3];
  const Value two = integer(2);
  const Value y0 =
      clamp(sub(floor_div(pos, width), floor_div(kh, two)), integer(0), sub(height, kh));
  const Value x0 = clamp(sub(mod(pos, width), floor_div(kw, two)), integer(0), sub(width, kw));
  const Value in_window = logical_and(within(y0, floor_div(k, width), add(y0, kh)),
                                      within(x0, mod(k, width), add(x0, kw)));
  return logical_and(within(integer(0), pos, mul(height, width)), in_window);
}

Value NamedMask::natten3d(Value pos, Value k) const {
  // The digits of an index, slowest first, and the window around them.
  const Value plane = mul(numbers_[1], numbers_[2]);
  const auto digit = [&](Value index, std::size_t axis) {
    return axis == 0   ? floor_div(index, plane)
           : axis == 1 ? floor_div(mod(index, plane), numbers_[2])
                       : mod(index, numbers_[2]);
  };
  Value result = within(integer(0), pos, mul(numbers_[0], plane));
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const Value side = numbers_[axis], window = numbers_[axis + 3];
    const Value begin =
        clamp(sub(digit(pos, axis), floor_div(window, integer(2))), integer(0), sub(side, window));
    result = logical_and(result, within(begin, digit(k, axis), add(begin, window)));
  }
  return result;
}

Value NamedMask::block_diffusion(Value pos, Value k) const {
  const Value n = numbers_[0], size = numbers_[1];
  const Value pos_noised = less(pos, n), k_noised = less(k, n);
  const Value pos_clean = logical_not(pos_noised), k_clean = logical_not(k_noised);
  const Value pos_block = floor_div(mod(pos, n), size), k_block = floor_div(mod(k, n), size);
  const Value same = logical_and(equal(pos_block, k_block), equal(pos_noised, k_noised));
  const Value earlier = logical_and(logical_and(pos_noised, k_clean), less(k_block, pos_block));
  const Value clean = logical_and(logical_and(pos_clean, k_clean), less_equal(k_block, pos_block));
  return logical_and(within(integer(0), pos, mul(integer(2), n)),
                     logical_or(logical_or(same, earlier), clean));
}

Value NamedMask::at(Value q, Value k) const {
  const Value pos = sub(add(q, kv_len_), q_len_);
  const Value pos_in_keys = within(integer(0), pos, kv_len_);
  switch (form_) {
    case MaskForm::causal:
      return less_equal(k, pos);
    case MaskForm::window:
      return is_infinite_[0] ? condition(true) : less(abs(sub(pos, k)), numbers_[0]);
    case MaskForm::window_pair: {
      const Value left =
          is_infinite_[0] ? condition(true) : less_equal(negate(numbers_[0]), sub(k, pos));
      const Value right = is_infinite_[1] ? condition(true) : less_equal(sub(k, pos), numbers_[1]);
      return logical_and(left, right);
    }
    case MaskForm::dilated:
      return logical_and(is_infinite_[0] ? condition(true) : less(abs(sub(pos, k)), numbers_[0]),
                         equal(mod(sub(pos, k), numbers_[1]), integer(0)));
    case MaskForm::documents_ids:
    case MaskForm::documents_lengths:
    case MaskForm::documents_cu_seqlens:
      return same_document(pos, k);
    case MaskForm::documents_q_k_ids: {
      const Value a = read(tables_[0], {q}), b = read(tables_[1], {k});
      const Value both = logical_and(less_equal(integer(0), a), less_equal(integer(0), b));
      return logical_and(both, equal(a, b));
    }
    case MaskForm::prefix:
      return less(k, numbers_[0]);
    case MaskForm::sink:
      return is_infinite_[0] ? condition(true) : less(k, numbers_[0]);
    case MaskForm::prefix_documents: {
      const Value in_prefix = less(element(order_, k), read(tables_[0], {id(k)}));
      return logical_and(same_document(pos, k), logical_or(less_equal(k, pos), in_prefix));
    }
    case MaskForm::share_question: {
      const Value part = read(tables_[0], {k});
      const Value visible =
          logical_or(equal(part, integer(0)), equal(read(tables_[0], {pos}), part));
      return logical_and(same_document(pos, k), visible);
    }
    case MaskForm::causal_blockwise: {
      const Value ids = logical_and(less_equal(integer(0), id(pos)), less_equal(integer(0), id(k)));
      const Value visible = logical_or(equal(id(k), id(pos)), equal(id(pos), last_id_));
      return logical_and(logical_and(pos_in_keys, less_equal(k, pos)), logical_and(ids, visible));
    }
    case MaskForm::chunked:
      return equal(floor_div(pos, numbers_[0]), floor_div(k, numbers_[0]));
    case MaskForm::block_causal:
      return less_equal(floor_div(k, numbers_[0]), floor_div(pos, numbers_[0]));
    case MaskForm::global:
      if (tables_.empty()) return logical_or(less(k, numbers_[0]), less(pos, numbers_[0]));
      return logical_or(read(tables_[0], {k}), logical_and(pos_in_keys, read(tables_[0], {pos})));
    case MaskForm::padding:
    case MaskForm::padding_side:
      return is_left_ ? less_equal(sub(kv_len_, numbers_[0]), k) : less(k, numbers_[0]);
    case MaskForm::intervals:
    case MaskForm::rows: {
      const Value table_index = form_ == MaskForm::intervals ? k : q;
      const Value position = form_ == MaskForm::intervals ? q : k;
      Value any = condition(false);
      for (std::int64_t i = 0; i < tables_[0].extents[0] && !any.is_true(); ++i) {
        const Value begin = read(tables_[0], {integer(i), table_index});
        const Value end = read(tables_[1], {integer(i), table_index});
        any = logical_or(any, within(begin, position, end));
      }
      return any;
    }
    case MaskForm::tiles:
      return read(tables_[0], {floor_div(q, numbers_[0]), floor_div(k, numbers_[1])});
    case MaskForm::bits:
      return read(tables_[0], {q, k});
    case MaskForm::tree: {
      const Value before = sub(kv_len_, integer(static_cast<std::int64_t>(parents_.size())));
      const Value is_node = logical_and(less_equal(before, pos), pos_in_keys);
      const Value is_ancestor = tree_node(sub(k, before), sub(pos, before));
      return logical_or(less(k, before), logical_and(is_node, is_ancestor));
    }
    case MaskForm::block_diffusion:
      return block_diffusion(pos, k);
    case MaskForm::natten2d:
      return natten(pos, k);
    case MaskForm::natten3d:
      return natten3d(pos, k);
    case MaskForm::topk:
    case MaskForm::none:
      break;
  }
  return kUndefined;
}

}  // namespace fdma::reference
