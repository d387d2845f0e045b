// The forms of the nodes of a program, and what they demand of translations (analysis.hpp). The file
// is longer than most: every operator is a rule over the same forms and cuts.
#include "periodic/analysis.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>
#include <utility>

#include "fdma/base/interval.hpp"

namespace fdma::periodic {
namespace {

__extension__ using Wide = __int128;

constexpr std::size_t kMostForms = 8;
constexpr std::size_t kMostCuts = 64;
constexpr std::int64_t kNear = 2048;   // values of forms with one slope that make one form
constexpr std::int64_t kFewTurns = 4;  // of a remainder, which then is a few lines and not periodic
constexpr std::int64_t kMostFactor = std::int64_t{1} << 28;
constexpr std::int64_t kMostOffset = std::int64_t{1} << 59;

// A value v with v * scale = row_factor * q + col_factor * k + r, where lo <= r <= hi.
struct Form {
  std::int64_t row_factor = 0;
  std::int64_t col_factor = 0;
  std::int64_t lo = 0;
  std::int64_t hi = 0;
  std::int64_t scale = 1;

  bool is_flat() const { return row_factor == 0 && col_factor == 0; }
  bool has_slope_of(const Form& other) const {
    return row_factor == other.row_factor && col_factor == other.col_factor && scale == other.scale;
  }
};

// The forms of a node, of different slopes or far from each other. An opaque node has none.
struct Forms {
  std::vector<Form> list;
  bool is_opaque = false;

  bool are_flat() const {
    return !is_opaque &&
           std::all_of(list.begin(), list.end(), [](const Form& form) { return form.is_flat(); });
  }
};

class Analysis {
 public:
  Analysis(const IrProgram& program, const TableRanges& tables, BlockShape block,
           const CellBox& box)
      : program_(program),
        block_(block),
        box_(box),
        ranges_(node_ranges(program, tables, box)),
        forms_(program.nodes.size()) {}

  std::optional<Structure> run() {
    const std::vector<std::uint8_t> reached = reached_nodes();
    for (std::size_t id = 0; id < program_.nodes.size() && !has_failed_; ++id) {
      if (reached[id] == 0) continue;
      if (ranges_[id].may_be_undefined) return std::nullopt;
      visit(static_cast<IrId>(id));
      const Forms& made = forms_[id];
      if (!is_condition(program_.nodes[id].op) && !made.is_opaque && made.list.empty()) {
        return std::nullopt;
      }
      if (made.list.size() > kMostForms || cuts_.size() > 8 * kMostCuts) return std::nullopt;
    }
    if (has_failed_) return std::nullopt;
    return Structure{lattice_, merged_cuts()};
  }

 private:
  const IrNode& node(IrId id) const { return program_.node(id); }
  const NodeRange& range(IrId id) const { return ranges_[static_cast<std::size_t>(id)]; }
  const Forms& forms(IrId id) const { return forms_[static_cast<std::size_t>(id)]; }
  void fail() { has_failed_ = true; }

  // The operand that decides a minimum or maximum everywhere, or -1.
  int chosen_operand(const IrNode& n) const {
    const NodeRange& a = range(n.children[0]);
    const NodeRange& b = range(n.children[1]);
    if (a.hi <= b.lo) return n.op == IrOp::min ? 0 : 1;
    if (b.hi <= a.lo) return n.op == IrOp::min ? 1 : 0;
    return -1;
  }

  // The modulus of x % m == y % m or x % m != y % m, which tells whether m divides x - y.
  std::optional<std::int64_t> common_modulus(const IrNode& n) const {
    if (n.op != IrOp::equal && n.op != IrOp::not_equal) return std::nullopt;
    const IrNode& a = node(n.children[0]);
    const IrNode& b = node(n.children[1]);
    if (a.op != IrOp::mod || b.op != IrOp::mod) return std::nullopt;
    const auto modulus = constant(a.children[1]);
    return modulus && modulus == constant(b.children[1]) ? modulus : std::nullopt;
  }

  // Nodes on which the root depends once ranges have decided what they decide.
  std::vector<std::uint8_t> reached_nodes() const {
    std::vector<std::uint8_t> reached(program_.nodes.size(), 0);
    reached[static_cast<std::size_t>(program_.root)] = 1;
    for (IrId id = program_.root; id >= 0; --id) {
      if (reached[static_cast<std::size_t>(id)] == 0 || range(id).is_constant()) continue;
      const IrNode& n = node(id);
      const auto reach = [&](int c) { reached[static_cast<std::size_t>(n.children[c])] = 1; };
      const bool is_choice = n.op == IrOp::where || n.op == IrOp::where_condition;
      if (is_choice && range(n.children[0]).is_constant()) {
        reach(range(n.children[0]).lo != 0 ? 1 : 2);
      } else if ((n.op == IrOp::min || n.op == IrOp::max) && chosen_operand(n) >= 0) {
        reach(chosen_operand(n));
      } else if (common_modulus(n)) {
        for (int c = 0; c < 2; ++c) {
          reached[static_cast<std::size_t>(node(n.children[c]).children[0])] = 1;
        }
      } else {
        for (int c = 0; c < n.num_children; ++c) reach(c);
      }
    }
    return reached;
  }

  // ---- forms

  // A form in lowest terms, or none if its numbers are too large.
  std::optional<Form> make_form(Wide row_factor, Wide col_factor, Wide lo, Wide hi, Wide scale) {
    const auto is_within = [](Wide x, std::int64_t most) { return x <= most && x >= -Wide{most}; };
    if (!is_within(scale, kMostFactor) || !is_within(row_factor, kMostFactor) ||
        !is_within(col_factor, kMostFactor) || !is_within(lo, kMostOffset) ||
        !is_within(hi, kMostOffset)) {
      fail();
      return std::nullopt;
    }
    Form form{static_cast<std::int64_t>(row_factor), static_cast<std::int64_t>(col_factor),
              static_cast<std::int64_t>(lo), static_cast<std::int64_t>(hi),
              static_cast<std::int64_t>(scale)};
    const std::int64_t common = std::gcd(form.scale, std::gcd(form.row_factor, form.col_factor));
    form.row_factor /= common;
    form.col_factor /= common;
    form.scale /= common;
    // The remainder is a multiple of what divides the rest.
    form.lo = ceil_quotient(form.lo, common);
    form.hi = floor_quotient(form.hi, common);
    return form;
  }

  std::optional<Form> combine(const Form& a, const Form& b, int sign) {
    const std::int64_t scale = std::lcm(a.scale, b.scale);
    const Wide x = scale / a.scale, y = Wide{scale / b.scale} * sign;
    return make_form(a.row_factor * x + b.row_factor * y, a.col_factor * x + b.col_factor * y,
                     a.lo * x + (sign > 0 ? b.lo : b.hi) * y,
                     a.hi * x + (sign > 0 ? b.hi : b.lo) * y, scale);
  }

  // The smallest and the largest value of a form's linear part on the box.
  std::pair<Wide, Wide> extent(std::int64_t row_factor, std::int64_t col_factor) const {
    const Wide q0 = Wide{row_factor} * box_.q_begin, q1 = Wide{row_factor} * (box_.q_end - 1);
    const Wide k0 = Wide{col_factor} * box_.k_begin, k1 = Wide{col_factor} * (box_.k_end - 1);
    return {std::min(q0, q1) + std::min(k0, k1), std::max(q0, q1) + std::max(k0, k1)};
  }

  void add(Forms& to, const std::optional<Form>& form, const NodeRange& bounds) {
    if (!form) return;
    Form made = *form;
    const auto [lo, hi] = extent(made.row_factor, made.col_factor);
    if (lo + made.lo > Wide{bounds.hi} * made.scale ||
        hi + made.hi < Wide{bounds.lo} * made.scale) {
      return;  // no cell has a value of this form
    }
    if (made.is_flat()) {
      made.lo = std::max(made.lo, bounds.lo);
      made.hi = std::min(made.hi, bounds.hi);
    }
    for (Form& known : to.list) {
      if (!known.has_slope_of(made)) continue;
      const Wide gap = std::max(Wide{made.lo} - known.hi, Wide{known.lo} - made.hi);
      if (gap > Wide{kNear} * made.scale) continue;  // a wide cut would take their place
      known.lo = std::min(known.lo, made.lo);
      known.hi = std::max(known.hi, made.hi);
      return;
    }
    to.list.push_back(made);
  }

  Forms flat(const NodeRange& bounds) {
    Forms result;
    if (bounds.lo < -kMostOffset || bounds.hi > kMostOffset) fail();
    result.list.push_back({0, 0, bounds.lo, bounds.hi, 1});
    return result;
  }

  Forms opaque() const {
    Forms result;
    result.is_opaque = true;
    return result;
  }

  Forms scaled(const Forms& x, std::int64_t factor, const NodeRange& bounds) {
    Forms result;
    for (const Form& form : x.list) {
      const Wide lo = Wide{factor} * (factor >= 0 ? form.lo : form.hi);
      const Wide hi = Wide{factor} * (factor >= 0 ? form.hi : form.lo);
      add(result,
          make_form(Wide{factor} * form.row_factor, Wide{factor} * form.col_factor, lo, hi,
                    form.scale),
          bounds);
    }
    return result;
  }

  // x + [lo, hi], where the sum is a whole number.
  Forms shifted(const Forms& x, std::int64_t lo, std::int64_t hi, const NodeRange& bounds) {
    Forms result;
    for (const Form& form : x.list) {
      add(result,
          make_form(form.row_factor, form.col_factor, form.lo + Wide{lo} * form.scale,
                    form.hi + Wide{hi} * form.scale, form.scale),
          bounds);
    }
    return result;
  }

  Forms quotient(const Forms& x, std::int64_t divisor, const NodeRange& bounds) {
    if (x.is_opaque) return opaque();
    Forms result;
    for (const Form& form : x.list) {
      require(form, divisor);
      add(result,
          make_form(form.row_factor, form.col_factor, form.lo - Wide{divisor - 1} * form.scale,
                    form.hi, Wide{form.scale} * divisor),
          bounds);
    }
    return result;
  }

  // x % divisor where x // divisor has the few values first .. last: x moved by each, and a cut
  // where it passes from one to the next.
  Forms remainder_by_turns(const Forms& x, std::int64_t divisor, std::int64_t first,
                           std::int64_t last, const NodeRange& bounds) {
    Forms result;
    for (std::int64_t turn = first; turn <= last; ++turn) {
      const std::int64_t begin = turn * divisor;
      if (turn > first) cut(x, flat({begin, begin, false}), -1, 0);
      for (const Form& form : shifted(x, -begin, -begin, bounds).list) add(result, form, bounds);
    }
    return result;
  }

  // ---- demands on translations

  // The form moves by a multiple of `modulus`.
  void require(const Form& form, std::int64_t modulus) {
    if (form.is_flat() || has_failed_) return;
    const Wide m = Wide{modulus} * form.scale;
    if (m > Wide{1} << 40 ||
        !lattice_.restrict_to(form.row_factor * block_.block_q, form.col_factor * block_.block_kv,
                              static_cast<std::int64_t>(m))) {
      fail();
    }
  }

  // The value of the node modulo `modulus` does not change.
  void require_remainder(IrId id, std::int64_t modulus) {
    const auto key = std::pair(id, modulus);
    if (has_failed_ || std::find(known_.begin(), known_.end(), key) != known_.end()) return;
    known_.push_back(key);
    if (range(id).is_constant()) return;
    if (!forms(id).is_opaque) {
      for (const Form& form : forms(id).list) require(form, modulus);
      return;
    }
    const IrNode& n = node(id);
    if (n.op == IrOp::add || n.op == IrOp::sub || n.op == IrOp::mul) {
      require_remainder(n.children[0], modulus);
      require_remainder(n.children[1], modulus);
    } else if (n.op == IrOp::shl && range(n.children[1]).is_constant()) {
      require_remainder(n.children[0], modulus);
    } else {
      fail();
    }
  }

  // x - y modulo `modulus` does not change.
  void require_difference(IrId x, IrId y, std::int64_t modulus) {
    if (forms(x).is_opaque || forms(y).is_opaque) {
      require_remainder(x, modulus);
      require_remainder(y, modulus);
      return;
    }
    for (const Form& a : forms(x).list) {
      for (const Form& b : forms(y).list) {
        if (const std::optional<Form> form = combine(a, b, -1)) require(*form, modulus);
      }
    }
  }

  // x - y stays at most `below`, or at least `above`.
  void cut(const Forms& x, const Forms& y, std::int64_t below, std::int64_t above) {
    if (x.is_opaque || y.is_opaque) return fail();
    for (const Form& a : x.list) {
      for (const Form& b : y.list) {
        const std::optional<Form> form = combine(a, b, -1);
        if (!form) return;
        if (form->is_flat()) continue;
        // d * scale = linear + r, and d is whole: d <= below where d * scale < (below + 1) * scale.
        add_cut(form->row_factor, form->col_factor, Wide{below + 1} * form->scale - 1 - form->hi,
                Wide{above - 1} * form->scale + 1 - form->lo);
      }
    }
  }

  void add_cut(std::int64_t row_factor, std::int64_t col_factor, Wide below, Wide above) {
    const auto [lo, hi] = extent(row_factor, col_factor);
    if (hi <= below || lo >= above) return;
    const std::int64_t common = std::gcd(row_factor, col_factor);
    row_factor /= common;
    col_factor /= common;
    // Between the extremes of the box both are small.
    Cut made{row_factor, col_factor, 0, 0};
    made.below = floor_quotient(static_cast<std::int64_t>(std::max(below, lo - common)), common);
    made.above = ceil_quotient(static_cast<std::int64_t>(std::min(above, hi + common)), common);
    made.above = std::max(made.above, made.below);  // where both sides hold, either is right
    if (col_factor < 0 || (col_factor == 0 && row_factor < 0)) {
      made = {-row_factor, -col_factor, -made.above, -made.below};
    }
    cuts_.push_back(made);
  }

  std::vector<Cut> merged_cuts() {
    std::sort(cuts_.begin(), cuts_.end(), [](const Cut& a, const Cut& b) {
      return std::tie(a.row_factor, a.col_factor, a.below, a.above) <
             std::tie(b.row_factor, b.col_factor, b.below, b.above);
    });
    std::vector<Cut> merged;
    for (const Cut& each : cuts_) {
      const bool overlaps =
          !merged.empty() && merged.back().is_parallel_to(each) &&
          (each.below == merged.back().below || each.below + 1 < merged.back().above);
      if (overlaps) {
        merged.back().above = std::max(merged.back().above, each.above);
      } else {
        merged.push_back(each);
      }
    }
    return merged;
  }

  // ---- nodes

  void visit(IrId id) {
    const IrNode& n = node(id);
    Forms& out = forms_[static_cast<std::size_t>(id)];
    if (range(id).is_constant()) {
      if (!is_condition(n.op)) out = flat(range(id));
      return;
    }
    if (is_condition(n.op)) {
      visit_condition(n);
    } else {
      out = integer_forms(id, n);
    }
  }

  void visit_condition(const IrNode& n) {
    switch (n.op) {
      case IrOp::boolean:
      case IrOp::logical_and:
      case IrOp::logical_or:
      case IrOp::logical_xor:
      case IrOp::logical_not:
      case IrOp::where_condition:
        return;
      case IrOp::less:
        return cut(forms(n.children[0]), forms(n.children[1]), -1, 0);
      case IrOp::less_equal:
        return cut(forms(n.children[0]), forms(n.children[1]), 0, 1);
      case IrOp::equal:
      case IrOp::not_equal:
        if (const auto modulus = common_modulus(n)) {
          return require_difference(node(n.children[0]).children[0],
                                    node(n.children[1]).children[0], *modulus);
        }
        return cut(forms(n.children[0]), forms(n.children[1]), -1, 1);
      case IrOp::test:
        if (!has_flat_operands(n)) fail();
        return;
      default:
        return fail();
    }
  }

  bool has_flat_operands(const IrNode& n) const {
    for (int c = 0; c < n.num_children; ++c) {
      if (!is_condition(node(n.children[c]).op) && !forms(n.children[c]).are_flat()) return false;
    }
    return true;
  }

  // The constant that the operand is, if it is one.
  std::optional<std::int64_t> constant(IrId id) const {
    if (!range(id).is_constant()) return std::nullopt;
    return range(id).lo;
  }

  Forms integer_forms(IrId id, const IrNode& n) {
    const NodeRange& bounds = range(id);
    switch (n.op) {
      case IrOp::q:
        return Forms{{{1, 0, 0, 0, 1}}};
      case IrOp::k:
        return Forms{{{0, 1, 0, 0, 1}}};
      case IrOp::where: {
        if (const auto condition = constant(n.children[0])) {
          return forms(n.children[*condition != 0 ? 1 : 2]);
        }
        return unite(forms(n.children[1]), forms(n.children[2]), bounds);
      }
      case IrOp::min:
      case IrOp::max: {
        if (const int chosen = chosen_operand(n); chosen >= 0) return forms(n.children[chosen]);
        const Forms& a = forms(n.children[0]);
        const Forms& b = forms(n.children[1]);
        if (a.is_opaque || b.is_opaque) return opaque();
        cut(a, b, 0, 0);
        return unite(a, b, bounds);
      }
      case IrOp::abs: {
        const Forms& x = forms(n.children[0]);
        if (x.is_opaque || range(n.children[0]).lo >= 0) return x;
        Forms negative = scaled(x, -1, bounds);
        if (range(n.children[0]).hi <= 0) return negative;
        cut(x, flat({0, 0, false}), 0, 0);
        return unite(x, negative, bounds);
      }
      default:
        if (has_flat_operands(n)) return flat(bounds);
        return arithmetic_forms(n, bounds);
    }
  }

  Forms unite(const Forms& a, const Forms& b, const NodeRange& bounds) {
    if (a.is_opaque || b.is_opaque) return opaque();
    Forms result;
    for (const Form& form : a.list) add(result, form, bounds);
    for (const Form& form : b.list) add(result, form, bounds);
    return result;
  }

  Forms arithmetic_forms(const IrNode& n, const NodeRange& bounds) {
    if (n.num_children != 2) return opaque();
    const Forms& a = forms(n.children[0]);
    const Forms& b = forms(n.children[1]);
    const auto left = constant(n.children[0]);
    const auto right = constant(n.children[1]);
    switch (n.op) {
      case IrOp::add:
      case IrOp::sub: {
        if (a.is_opaque || b.is_opaque) return opaque();
        Forms result;
        for (const Form& x : a.list) {
          for (const Form& y : b.list)
            add(result, combine(x, y, n.op == IrOp::add ? 1 : -1), bounds);
        }
        return result;
      }
      case IrOp::mul:
        if (right && !a.is_opaque) return scaled(a, *right, bounds);
        if (left && !b.is_opaque) return scaled(b, *left, bounds);
        return opaque();
      case IrOp::shl:
        if (!right || *right > 30 || a.is_opaque) return opaque();
        return scaled(a, std::int64_t{1} << *right, bounds);
      case IrOp::floor_div:
        return right ? quotient(a, *right, bounds) : opaque();
      case IrOp::shr:
        return right && *right <= 30 ? quotient(a, std::int64_t{1} << *right, bounds) : opaque();
      case IrOp::mod: {
        if (!right) return opaque();
        const NodeRange& x = range(n.children[0]);
        const std::int64_t first = floor_quotient(x.lo, *right);
        const std::int64_t last = floor_quotient(x.hi, *right);
        if (!a.is_opaque && !a.are_flat() && last - first < kFewTurns) {
          return remainder_by_turns(a, *right, first, last, bounds);
        }
        require_remainder(n.children[0], *right);
        return flat(bounds);
      }
      case IrOp::bit_and:
      case IrOp::bit_or:
      case IrOp::bit_xor:
        if (right) return bit_forms(n.op, n.children[0], *right, bounds);
        return left ? bit_forms(n.op, n.children[1], *left, bounds) : opaque();
      default:
        return opaque();
    }
  }

  // A bit operator with a constant changes the low bits of x alone, and by those alone, but for
  // x & c with c >= 0, which is made of them.
  Forms bit_forms(IrOp op, IrId x, std::int64_t mask, const NodeRange& bounds) {
    const std::int64_t low = mask >= 0 ? mask : -1 - mask;  // the bits up to the last that matters
    if (low >= kMostFactor || forms(x).is_opaque) return opaque();
    std::int64_t modulus = 1;
    while (modulus <= low) modulus *= 2;
    if (op == IrOp::bit_and && mask >= 0) {
      require_remainder(x, modulus);
      return flat(bounds);
    }
    if (op == IrOp::bit_and || (op == IrOp::bit_or && mask >= 0)) {
      require_remainder(x, modulus);
      return op == IrOp::bit_and ? shifted(forms(x), -low, 0, bounds)
                                 : shifted(forms(x), 0, low, bounds);
    }
    if (op == IrOp::bit_xor && mask >= 0) {
      require_remainder(x, modulus);
      return shifted(forms(x), -low, low, bounds);
    }
    return opaque();
  }

  const IrProgram& program_;
  const BlockShape block_;
  const CellBox box_;
  const std::vector<NodeRange> ranges_;
  std::vector<Forms> forms_;
  TileLattice lattice_;
  std::vector<Cut> cuts_;
  std::vector<std::pair<IrId, std::int64_t>> known_;  // demands of require_remainder
  bool has_failed_ = false;
};

}  // namespace

std::vector<NodeRange> node_ranges(const IrProgram& program, const TableRanges& tables,
                                   const CellBox& box) {
  std::vector<NodeRange> ranges(program.nodes.size());
  for (std::size_t id = 0; id < program.nodes.size(); ++id) {
    const IrNode& n = program.nodes[id];
    NodeRange children[4];
    for (int c = 0; c < n.num_children; ++c) {
      children[c] = ranges[static_cast<std::size_t>(n.children[c])];
    }
    switch (n.op) {
      case IrOp::q:
        ranges[id] = {box.q_begin, box.q_end - 1, false};
        break;
      case IrOp::k:
        ranges[id] = {box.k_begin, box.k_end - 1, false};
        break;
      case IrOp::lookup:
      case IrOp::test:
        ranges[id] = tables.lookup(n.value, children);
        break;
      default:
        ranges[id] = range_of(n, children);
    }
  }
  return ranges;
}

std::optional<Structure> analyze(const IrProgram& program, const TableRanges& tables,
                                 BlockShape block, const CellBox& box) {
  std::optional<Structure> result = Analysis(program, tables, block, box).run();
  if (result && result->cuts.size() > kMostCuts) result.reset();
  return result;
}

}  // namespace fdma::periodic
