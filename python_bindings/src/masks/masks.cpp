// compile makes a BlockMask from a specification, given as text or built in Python, and its tables.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/interruption.hpp"
#include "arrays/python_error.hpp"
#include "bindings.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parametric_form.hpp"
#include "fdma/masks/parse.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

constexpr double kMostSeconds = 1e9;

using Lengths = std::variant<std::int64_t, std::vector<std::int64_t>>;

std::vector<std::int64_t> as_vector(Lengths lengths) {
  if (const auto* one = std::get_if<std::int64_t>(&lengths)) return {*one};
  return std::get<std::vector<std::int64_t>>(std::move(lengths));
}

/// The arguments of compile and explain, checked and converted.
struct Request {
  MaskShape shape;
  std::vector<InputArray> arrays;
  Tables views;
  Interruption interruption;
  LowerOptions options;

  Request(Lengths q_len, std::optional<Lengths> kv_len, std::int64_t batch, std::int64_t heads,
          const std::optional<nb::mapping>& tables, std::pair<std::int32_t, std::int32_t> block,
          int num_threads, std::optional<double> timeout, std::optional<std::int64_t> max_work)
      : shape{batch, heads, as_vector(std::move(q_len)), {}},
        interruption(checked(num_threads, timeout)) {
    shape.kv_lens = kv_len ? as_vector(*std::move(kv_len)) : shape.q_lens;
    if (tables) add_tables(*tables);
    options = {.block = {block.first, block.second},
               .num_threads = num_threads,
               .is_cancelled = [this] { return interruption.is_requested(); },
               .max_work = max_work.value_or(kDefaultMaxWork)};
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

 private:
  static Interruption checked(int num_threads, std::optional<double> timeout) {
    if (num_threads < 0) {
      throw PythonError({ErrorCode::invalid_argument,
                         fmt::format("num_threads: expected 0 or more, got {}", num_threads)});
    }
    if (timeout && !(*timeout > 0 && *timeout <= kMostSeconds)) {
      throw PythonError({ErrorCode::invalid_argument,
                         fmt::format("timeout: expected seconds above 0, at most {:.0f}, got {}",
                                     kMostSeconds, *timeout)});
    }
    return timeout ? Interruption(*timeout) : Interruption();
  }

  void add_tables(const nb::mapping& tables) {
    for (const nb::handle item : tables.items()) {
      std::string name;
      if (!nb::try_cast(item[0], name)) {
        throw PythonError({ErrorCode::invalid_argument, "tables: expected names as its keys"});
      }
      const std::string label = fmt::format("tables['{}']", name);
      arrays.push_back(input_array(label, item[1]));
      check_on_host(label, arrays.back().place);
      views.insert_or_assign(std::move(name), arrays.back().view);
    }
  }
};

using Specification = std::variant<std::string, MaskExpr>;

Result<MaskExpr> expr_of(Specification spec) {
  if (const auto* text = std::get_if<std::string>(&spec)) return parse_mask(*text);
  return std::get<MaskExpr>(std::move(spec));
}

BlockMask compile_mask(Specification spec, Lengths q_len, std::optional<Lengths> kv_len,
                       std::int64_t batch, std::int64_t heads,
                       const std::optional<nb::mapping>& tables, const std::string& format,
                       std::pair<std::int32_t, std::int32_t> block, int num_threads,
                       std::optional<double> timeout, std::optional<std::int64_t> max_work) {
  const Request request(std::move(q_len), std::move(kv_len), batch, heads, tables, block,
                        num_threads, timeout, max_work);
  const auto work = [&]() -> Result<BlockMask> {
    const nb::gil_scoped_release released;
    FDMA_TRY(const MaskFormat wanted, parse_mask_format(format));
    FDMA_TRY(const MaskExpr expr, expr_of(std::move(spec)));
    FDMA_TRY(BlockMask mask, compile(expr, request.views, request.shape, request.options));
    if (wanted == MaskFormat::parametric) {
      FDMA_TRY(mask, parametric_form(mask, expr, request.views));
    } else if (wanted != MaskFormat::segment) {
      FDMA_TRY(mask, convert(mask, wanted, request.options.block));
      mask.spec = expr.text();
    }
    return mask;
  };
  Result<BlockMask> mask = work();
  request.interruption.rethrow();
  return value_or_throw(std::move(mask));
}

nb::dict as_dict(const ProgramReport& report) {
  const auto text = [](std::string_view view) { return nb::str(view.data(), view.size()); };
  nb::list declined;
  for (const ProgramReport::Decline& decline : report.declined) {
    declined.append(nb::make_tuple(text(to_string(decline.engine)), text(decline.reason)));
  }
  nb::list phases;
  for (const ProgramReport::Phase& phase : report.phases) {
    phases.append(nb::make_tuple(text(phase.what), phase.seconds));
  }
  nb::list lines;
  for (const std::string& line : report_lines(report)) lines.append(text(line));
  nb::dict out;
  out["engine"] = text(to_string(report.engine));
  out["method"] = text(report.method);
  out["declined"] = nb::tuple(declined);
  out["seconds"] = report.seconds;
  out["num_tiles"] = report.num_tiles;
  out["num_bounded_tiles"] = report.num_bounded_tiles;
  out["num_evaluated_tiles"] = report.num_evaluated_tiles;
  out["num_repeated_tiles"] = report.num_repeated_tiles;
  out["phases"] = nb::tuple(phases);
  out["lines"] = nb::tuple(lines);
  return out;
}

nb::list explain_mask(Specification spec, Lengths q_len, std::optional<Lengths> kv_len,
                      std::int64_t batch, std::int64_t heads,
                      const std::optional<nb::mapping>& tables,
                      std::pair<std::int32_t, std::int32_t> block, int num_threads,
                      std::optional<double> timeout, std::optional<std::int64_t> max_work) {
  const Request request(std::move(q_len), std::move(kv_len), batch, heads, tables, block,
                        num_threads, timeout, max_work);
  LoweringReport report;
  const auto work = [&]() -> Result<BlockMask> {
    const nb::gil_scoped_release released;
    FDMA_TRY(const MaskExpr expr, expr_of(std::move(spec)));
    if (needs_selection(expr)) {
      return Error{ErrorCode::unsupported,
                   "explain: topk selects keys before a program is bound, so there is none to "
                   "explain"};
    }
    LowerOptions options = request.options;
    options.report = &report;
    return compile(expr, request.views, request.shape, options);
  };
  Result<BlockMask> mask = work();
  request.interruption.rethrow();
  value_or_throw(std::move(mask));
  nb::list programs;
  for (const ProgramReport& program : report.programs) programs.append(as_dict(program));
  return programs;
}

}  // namespace

void bind_masks(nb::module_& module) {
  module.def(
      "compile", &compile_mask, nb::arg("spec"), nb::arg("q_len"), nb::arg("kv_len") = nb::none(),
      nb::arg("batch") = 1, nb::arg("heads") = 1, nb::arg("tables") = nb::none(),
      nb::arg("format") = "segment", nb::arg("block") = std::pair(128, 128),
      nb::arg("num_threads") = 0, nb::arg("timeout") = nb::none(), nb::arg("max_work") = nb::none(),
      nb::sig(
          "def compile(spec: str | Expr, q_len: int | Sequence[int], kv_len: int | Sequence[int] | "
          "None = None, batch: int = 1, heads: int = 1, tables: Mapping[str, Array] | None = None, "
          "format: _Format = 'segment', block: tuple[int, int] = (128, 128), num_threads: int = 0, "
          "timeout: float | None = None, max_work: int | None = None) -> BlockMask"),
      "Returns the exact compiled mask of a specification, which is a text or a\n"
      "finished expression.\n\n"
      "q_len and kv_len are one length or one for each batch element; kv_len\n"
      "defaults to q_len. tables holds the arrays that the specification reads.\n"
      "num_threads counts threads of the CPU; 0 means all. timeout is in seconds;\n"
      "TimeoutError is raised after it. max_work counts operations in the bodies of\n"
      "loops; NotImplementedError is raised for a mask that takes more.");
  module.def(
      "explain", &explain_mask, nb::arg("spec"), nb::arg("q_len"), nb::arg("kv_len") = nb::none(),
      nb::arg("batch") = 1, nb::arg("heads") = 1, nb::arg("tables") = nb::none(),
      nb::arg("block") = std::pair(128, 128), nb::arg("num_threads") = 0,
      nb::arg("timeout") = nb::none(), nb::arg("max_work") = nb::none(),
      nb::sig(
          "def explain(spec: str | Expr, q_len: int | Sequence[int], kv_len: int | Sequence[int] | "
          "None = None, batch: int = 1, heads: int = 1, tables: Mapping[str, Array] | None = None, "
          "block: tuple[int, int] = (128, 128), num_threads: int = 0, timeout: float | None = "
          "None, "
          "max_work: int | None = None) -> list[dict[str, Any]]"),
      "Compiles as compile does and returns how each distinct program was lowered:\n"
      "the members of fdma.ProgramReport.");
}

}  // namespace fdma::python
