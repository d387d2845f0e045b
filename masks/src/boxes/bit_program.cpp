// Compilation walks the conditions from the root. A node that varies along one axis is an atom as a
// whole. Logic above atoms is an operator. Any other condition is a comparison, table or cell atom,
// whichever fits first. Rows then run operator by operator over blocks short enough for all
// intermediate rows to stay in the cache. Operands fold at run time: `and` with a constant row
// costs nothing, complements are a flag.
#include "boxes/bit_program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "ir/node_text.hpp"

namespace fdma::box {
namespace {

/// The bytes of all intermediate rows of one thread, and the limits of the words of a block.
constexpr std::int64_t kBufferBytes = std::int64_t{256} << 10;
constexpr std::int64_t kMaxBlockWords = 512;
constexpr std::int64_t kMinBlockWords = 8;

bool is_logic(IrOp op) {
  return op == IrOp::logical_and || op == IrOp::logical_or || op == IrOp::logical_xor ||
         op == IrOp::logical_not || op == IrOp::where_condition;
}

/// Throws bad_alloc where the vectors of the atoms cannot fit in memory. If they were allocated one
/// by one, the system would end the process instead.
void check_memory(const BoxProgram& program, std::int64_t num_atoms) {
  constexpr double kBytesPerPosition = 16;
  const double needed = kBytesPerPosition * static_cast<double>(num_atoms) *
                        static_cast<double>(program.q_len() + program.kv_len());
  const double installed =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed > installed) throw std::bad_alloc();
}

Plane and_planes(const Plane& a, const Plane& b, std::uint64_t* out, std::int64_t words) {
  if (a == kNone || b == kNone || a == b.complement()) return kNone;
  if (a == kEvery || a == b) return b;
  if (b == kEvery) return a;
  row_kernels().and_rows(out, a.bits, a.flip, b.bits, b.flip, words);
  return plane_of(out);
}

Plane or_planes(const Plane& a, const Plane& b, std::uint64_t* out, std::int64_t words) {
  return and_planes(a.complement(), b.complement(), out, words).complement();
}

Plane xor_planes(const Plane& a, const Plane& b, std::uint64_t* out, std::int64_t words) {
  if (a.is_constant()) return {b.bits, b.flip ^ a.flip};
  if (b.is_constant()) return {a.bits, a.flip ^ b.flip};
  if (a.bits == b.bits) return {nullptr, a.flip ^ b.flip};
  row_kernels().xor_rows(out, a.bits, b.bits, words);
  return {reinterpret_cast<const std::uint8_t*>(out), a.flip ^ b.flip};
}

/// (a & b) | (c & d). Uses three buffers of `stride` words.
Plane select_planes(const Plane& a, const Plane& b, const Plane& c, const Plane& d,
                    std::uint64_t* out, std::int64_t stride, std::int64_t words) {
  const Plane left = and_planes(a, b, out, words);
  const Plane right = and_planes(c, d, out + stride, words);
  return or_planes(left, right, out + 2 * stride, words);
}

}  // namespace

int BitProgram::num_buffers(const Op& op) {
  switch (op.op) {
    case IrOp::logical_and:
    case IrOp::logical_or:
      return op.is_partial ? 2 : 1;
    case IrOp::logical_xor:
      return op.is_partial ? 6 : 1;
    case IrOp::where_condition:
      return op.is_partial ? 6 : 3;
    default:
      return 0;
  }
}

BitProgram::BitProgram(BoxProgram& program, BlockShape block) : q_len_(program.q_len()) {
  // The conditions that become operators or atoms: found from the root, then in order of their ids.
  const auto is_operator = [&](IrId id) {
    return is_logic(program.node(id).op) && program.axis(id) == Axis::cell;
  };
  std::vector<IrId> found;
  std::vector<bool> is_seen(static_cast<std::size_t>(program.num_nodes()), false);
  std::vector<IrId> stack{program.root()};
  while (!stack.empty()) {
    const IrId id = stack.back();
    stack.pop_back();
    if (is_seen[static_cast<std::size_t>(id)]) continue;
    is_seen[static_cast<std::size_t>(id)] = true;
    found.push_back(id);
    if (!is_operator(id)) continue;
    const IrNode& node = program.node(id);
    for (int c = 0; c < node.num_children; ++c) stack.push_back(node.children[c]);
  }
  std::sort(found.begin(), found.end());
  check_memory(program, std::count_if(found.begin(), found.end(),
                                      [&](IrId id) { return !is_operator(id); }));
  std::vector<std::int32_t> place(is_seen.size(), -1);
  for (const IrId id : found) {
    if (program.must_stop()) return;  // the caller checks this too and uses nothing of the result
    const IrNode node = program.node(id);
    Op op{node.op, false, -1, {-1, -1, -1}, 0};
    if (is_operator(id)) {
      for (int c = 0; c < node.num_children; ++c) {
        op.operands[c] = place[static_cast<std::size_t>(node.children[c])];
        op.is_partial = op.is_partial || ops_[static_cast<std::size_t>(op.operands[c])].is_partial;
      }
    } else {
      std::unique_ptr<RowAtom> atom;
      AtomKind kind = AtomKind::axis;
      if (program.axis(id) != Axis::cell) atom = make_axis_atom(program, id, block);
      if (!atom) {
        atom = make_compare_atom(program, id, block);
        kind = AtomKind::compare;
      }
      if (!atom) {
        atom = make_table_atom(program, id, block);
        kind = AtomKind::table;
      }
      if (!atom) {
        atom = make_cell_atom(program, id, block);
        kind = AtomKind::cell;
      }
      if (slowest_ < 0 || kind > slowest_kind_) {
        slowest_ = id;
        slowest_kind_ = kind;
      }
      op.op = IrOp::boolean;
      op.is_partial = atom->may_be_undefined();
      op.atom = static_cast<std::int32_t>(atoms_.size());
      atoms_.push_back(std::move(atom));
    }
    op.buffer = num_buffers_;
    num_buffers_ += num_buffers(op);
    place[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(ops_.size());
    ops_.push_back(op);
  }
  const std::int64_t per_buffer =
      kBufferBytes / 8 / std::max<std::int64_t>(1, num_buffers_ + std::ssize(atoms_));
  max_words_ = std::clamp(per_buffer / 8 * 8, kMinBlockWords, kMaxBlockWords);
}

std::string BitProgram::slowest_condition(const BoxProgram& program) const {
  const char* way = "is one string of bits";
  if (slowest_kind_ == AtomKind::table) way = "is read from the rows of a table";
  if (slowest_kind_ == AtomKind::compare) way = "compares a number per query with one per key";
  if (slowest_kind_ == AtomKind::cell) way = "is evaluated cell by cell";
  const auto node = [&](IrId id) -> const IrNode& { return program.node(id); };
  return fmt::format("{} {}", node_text(node, program.tables().tables(), slowest_), way);
}

BitProgram::Worker::Worker(const BitProgram& program)
    : buffers_(static_cast<std::size_t>(program.num_buffers_ * program.max_words_)),
      planes_(program.ops_.size()),
      outcomes_(program.ops_.size()) {
  for (const auto& atom : program.atoms_) {
    atoms_.push_back(atom->make_scratch(program.max_words_));
  }
}

Planes BitProgram::row(const RowBlock& block, Worker& worker) const {
  const std::int64_t words = block.num_words;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    Planes& result = worker.planes_[i];
    if (op.op == IrOp::boolean) {
      const auto atom = static_cast<std::size_t>(op.atom);
      result = atoms_[atom]->row(block, *worker.atoms_[atom]);
      continue;
    }
    std::uint64_t* out = worker.buffers_.data() + op.buffer * max_words_;
    const Planes& a = worker.planes_[static_cast<std::size_t>(op.operands[0])];
    const Planes& b =
        op.operands[1] < 0 ? a : worker.planes_[static_cast<std::size_t>(op.operands[1])];
    switch (op.op) {
      case IrOp::logical_and:
        result = defined(and_planes(a.is_true, b.is_true, out, words));
        if (op.is_partial) {
          result.is_false = or_planes(a.is_false, b.is_false, out + max_words_, words);
        }
        break;
      case IrOp::logical_or:
        result = defined(or_planes(a.is_true, b.is_true, out, words));
        if (op.is_partial) {
          result.is_false = and_planes(a.is_false, b.is_false, out + max_words_, words);
        }
        break;
      case IrOp::logical_xor:
        if (!op.is_partial) {
          result = defined(xor_planes(a.is_true, b.is_true, out, words));
        } else {
          result = {
              select_planes(a.is_true, b.is_false, a.is_false, b.is_true, out, max_words_, words),
              select_planes(a.is_true, b.is_true, a.is_false, b.is_false, out + 3 * max_words_,
                            max_words_, words)};
        }
        break;
      case IrOp::logical_not:
        result = {a.is_false, a.is_true};
        break;
      default: {
        const Planes& c = worker.planes_[static_cast<std::size_t>(op.operands[2])];
        result = defined(
            select_planes(a.is_true, b.is_true, a.is_false, c.is_true, out, max_words_, words));
        if (op.is_partial) {
          result.is_false = select_planes(a.is_true, b.is_false, a.is_false, c.is_false,
                                          out + 3 * max_words_, max_words_, words);
        }
      }
    }
  }
  return worker.planes_.back();
}

Outcomes BitProgram::outcomes(const TileBox& box, Worker& worker) const {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    Outcomes& result = worker.outcomes_[i];
    if (op.op == IrOp::boolean) {
      const auto atom = static_cast<std::size_t>(op.atom);
      result = atoms_[atom]->outcomes(box, *worker.atoms_[atom]);
      continue;
    }
    const Outcomes a = worker.outcomes_[static_cast<std::size_t>(op.operands[0])];
    const Outcomes b =
        op.operands[1] < 0 ? a : worker.outcomes_[static_cast<std::size_t>(op.operands[1])];
    switch (op.op) {
      case IrOp::logical_and:
        result = and_outcomes(a, b);
        break;
      case IrOp::logical_or:
        result = or_outcomes(a, b);
        break;
      case IrOp::logical_xor:
        result = xor_outcomes(a, b);
        break;
      case IrOp::logical_not:
        result = not_outcomes(a);
        break;
      default:
        result = where_outcomes(a, b, worker.outcomes_[static_cast<std::size_t>(op.operands[2])]);
    }
  }
  return worker.outcomes_.back();
}

std::vector<std::uint8_t> BitProgram::repeated_rows() const {
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(q_len_), 0);
  for (const auto& atom : atoms_) atom->mark_changes(flags);
  for (std::uint8_t& flag : flags) flag = flag == 0 ? 1 : 0;
  if (!flags.empty()) flags[0] = 0;
  return flags;
}

}  // namespace fdma::box
