// Named masks written out as programs. Every formula is one that a user could have written. Where
// pos may lie outside the keys, its look-ups in a table are guarded by `0 <= pos & pos < kv_len`,
// and three-valued logic makes the guard decide. Longer than most files because each name of the
// table has its case here; expand_names_tables.cpp reads their arguments.
#include "bind/expand_names.hpp"

#include <cstddef>

namespace fdma {
std::int64_t LoopIds::id_of(std::int64_t depth, std::int64_t bound) {
  for (std::size_t id = 0; id < known_.size(); ++id)
    if (known_[id] == std::pair{depth, bound}) return static_cast<std::int64_t>(id);
  known_.emplace_back(depth, bound);
  return static_cast<std::int64_t>(known_.size()) - 1;
}

// Equal ids that are not negative. Where k's id is defined, the sign of one of them is enough.
IrId NameExpander::same_document(const TableRef& ids, IrId pos, IrId k, IrId in_keys) {
  const IrId zero = builder_.constant(0);
  const IrId pos_id = entry(ids, pos), k_id = entry(ids, k);
  IrId condition = both(both(same(k_id, pos_id), at_most(zero, k_id)), in_keys);
  if (builder_.range(k_id).may_be_undefined) condition = both(condition, at_most(zero, pos_id));
  return condition;
}

IrId NameExpander::interval_lists(const NameInstance& mask, IrId index, IrId position,
                                  std::int64_t loop_depth) {
  if (mask.values.empty()) {  // one pair of 1-dimensional tables per interval
    IrId any = builder_.boolean(false);
    for (std::size_t i = 0; i + 1 < mask.tables.size(); i += 2)
      any = either(
          any, within(entry(mask.tables[i], index), position, entry(mask.tables[i + 1], index)));
    return any;
  }
  const std::int64_t count = mask.values[0];
  const std::int64_t loop_id = loops_.id_of(loop_depth, count);
  const IrId indices[2] = {builder_.loop(loop_id, count), index};
  const IrId begin = builder_.lookup(mask.tables[0], indices);
  const IrId end = builder_.lookup(mask.tables[1], indices);
  return builder_.quantifier(IrOp::any_of, loop_id, builder_.constant(count),
                             within(begin, position, end));
}

// Nodes are the last keys. a sees x iff a's interval of the depth-first order holds x's number.
IrId NameExpander::tree(const NameInstance& mask, IrId pos, IrId k, IrId in_keys) {
  const IrId before = builder_.constant(mask.values[0]);
  const IrId node = minus(k, before), of = minus(pos, before);
  const IrId is_ancestor =
      within(entry(mask.tables[0], node), entry(mask.tables[0], of), entry(mask.tables[1], node));
  return either(below(k, before), both(both(at_most(before, pos), in_keys), is_ancestor));
}

IrId NameExpander::block_diffusion(const NameInstance& mask, IrId pos, IrId k) {
  const IrId n = mask.numbers[0], size = mask.numbers[1];
  const auto block = [&](IrId x) {
    return builder_.make(IrOp::floor_div, builder_.make(IrOp::mod, x, n), size);
  };
  const auto negation = [&](IrId x) { return builder_.make(IrOp::logical_not, x); };
  const IrId pos_noised = below(pos, n), k_noised = below(k, n);
  const IrId pos_block = block(pos), k_block = block(k);
  const IrId same_half = negation(builder_.make(IrOp::logical_xor, pos_noised, k_noised));
  const IrId same_block = both(same(pos_block, k_block), same_half);
  const IrId earlier = both(both(pos_noised, negation(k_noised)), below(k_block, pos_block));
  const IrId clean =
      both(both(negation(pos_noised), negation(k_noised)), at_most(k_block, pos_block));
  const IrId on_canvas = within(builder_.constant(0), pos, builder_.constant(mask.values[0]));
  return both(on_canvas, either(either(same_block, earlier), clean));
}

IrId NameExpander::natten(const NameInstance& mask, IrId pos, IrId k) {
  const IrId zero = builder_.constant(0), two = builder_.constant(2);
  const IrId height = mask.numbers[0], width = mask.numbers[1];
  const auto window = [&](IrOp part, IrId length, IrId size) {
    const IrId centre = builder_.make(part, pos, width);
    const IrId half = builder_.make(IrOp::floor_div, size, two);
    const IrId begin = builder_.make(IrOp::min, builder_.make(IrOp::max, minus(centre, half), zero),
                                     minus(length, size));
    return within(begin, builder_.make(part, k, width), plus(begin, size));
  };
  const IrId on_canvas = within(zero, pos, builder_.constant(mask.values[0]));
  return both(on_canvas, both(window(IrOp::floor_div, height, mask.numbers[2]),
                              window(IrOp::mod, width, mask.numbers[3])));
}

IrId NameExpander::expand(const NameInstance& mask, const BoundPair& pair, IrId q, IrId k,
                          std::int64_t loop_depth) {
  const IrId zero = builder_.constant(0), kv_len = builder_.constant(pair.kv_len);
  const IrId pos = minus(plus(q, kv_len), builder_.constant(pair.q_len));
  const auto number = [&](std::size_t i) { return mask.numbers[i]; };
  const auto in_keys = [&] { return within(zero, pos, kv_len); };
  const auto always = [&] { return builder_.boolean(true); };
  const auto is_infinite = [&](std::size_t i) { return mask.numbers[i] < 0; };
  const auto distance_below = [&](std::size_t i) {
    return is_infinite(i) ? always() : below(builder_.make(IrOp::abs, minus(pos, k)), number(i));
  };
  switch (mask.form) {
    case MaskForm::causal:
      return at_most(k, pos);
    case MaskForm::window:
      return distance_below(0);
    case MaskForm::window_pair: {
      const IrId offset = minus(k, pos);
      const IrId left = is_infinite(0) ? always() : at_most(minus(zero, number(0)), offset);
      const IrId right = is_infinite(1) ? always() : at_most(offset, number(1));
      return both(left, right);
    }
    case MaskForm::dilated:
      return both(distance_below(0),
                  same(builder_.make(IrOp::mod, minus(pos, k), number(1)), zero));
    case MaskForm::documents_ids:
    case MaskForm::documents_lengths:
    case MaskForm::documents_cu_seqlens:
      return same_document(mask.tables[0], pos, k, in_keys());
    case MaskForm::documents_q_k_ids: {
      const IrId a = entry(mask.tables[0], q), b = entry(mask.tables[1], k);
      const IrId condition = both(same(b, a), at_most(zero, b));
      return builder_.range(b).may_be_undefined ? both(condition, at_most(zero, a)) : condition;
    }
    case MaskForm::prefix:
      return below(k, number(0));
    case MaskForm::sink:
      return is_infinite(0) ? always() : below(k, number(0));
    case MaskForm::prefix_documents:
      return both(same_document(mask.tables[0], pos, k, in_keys()),
                  either(at_most(k, pos), entry(mask.tables[1], k)));
    case MaskForm::share_question: {
      const IrId part = entry(mask.tables[1], k);
      return both(same_document(mask.tables[0], pos, k, in_keys()),
                  either(same(part, zero), same(part, entry(mask.tables[1], pos))));
    }
    case MaskForm::causal_blockwise: {
      const IrId pos_id = entry(mask.tables[0], pos), k_id = entry(mask.tables[0], k);
      const IrId last = builder_.constant(mask.values[0]);
      const IrId visible = either(same(k_id, pos_id), same(pos_id, last));
      return both(both(both(in_keys(), at_most(k, pos)), visible),
                  both(at_most(zero, pos_id), at_most(zero, k_id)));
    }
    case MaskForm::chunked:
    case MaskForm::block_causal: {
      const IrId pos_chunk = builder_.make(IrOp::floor_div, pos, number(0));
      const IrId k_chunk = builder_.make(IrOp::floor_div, k, number(0));
      return mask.form == MaskForm::chunked ? same(pos_chunk, k_chunk)
                                            : at_most(k_chunk, pos_chunk);
    }
    case MaskForm::global:
      if (mask.tables.empty()) return either(below(k, number(0)), below(pos, number(0)));
      return either(entry(mask.tables[0], k), both(in_keys(), entry(mask.tables[0], pos)));
    case MaskForm::padding:
    case MaskForm::padding_side:
      return mask.is_left ? at_most(minus(kv_len, number(0)), k) : below(k, number(0));
    case MaskForm::intervals:
      return interval_lists(mask, k, q, loop_depth);
    case MaskForm::rows:
      return interval_lists(mask, q, k, loop_depth);
    case MaskForm::tiles: {
      const IrId indices[2] = {builder_.make(IrOp::floor_div, q, number(0)),
                               builder_.make(IrOp::floor_div, k, number(1))};
      return builder_.lookup(mask.tables[0], indices);
    }
    case MaskForm::bits: {
      const IrId indices[2] = {q, k};
      return builder_.lookup(mask.tables[0], indices);
    }
    case MaskForm::tree:
      return tree(mask, pos, k, in_keys());
    case MaskForm::block_diffusion:
      return block_diffusion(mask, pos, k);
    case MaskForm::natten2d:
      return natten(mask, pos, k);
    case MaskForm::topk:  // refused by check_expr
    case MaskForm::none:
      break;
  }
  return builder_.boolean(false);
}

}  // namespace fdma
