// ExprNode and Expr, on which the Python classes MaskExpr, IntExpr and TableExpr are built.
#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays/python_error.hpp"
#include "bindings.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "masks/expr_nodes.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Names = std::map<std::string, std::string>;

NodeHandle expr_node(std::string_view op, const std::vector<NodeHandle>& operands,
                     std::int64_t value, std::string symbol) {
  return value_or_throw(make_operation(op, operands, value, std::move(symbol)));
}

NodeHandle named_node(std::string_view name, const std::vector<NodeHandle>& operands,
                      std::vector<std::string> keywords) {
  return value_or_throw(make_named(name, operands, std::move(keywords)));
}

std::optional<std::int64_t> fold_expr(std::string_view op,
                                      const std::vector<std::int64_t>& operands) {
  return value_or_throw(fold_operation(op, operands));
}

MaskExpr parse_expr(std::string_view text) {
  const nb::gil_scoped_release released;
  return value_or_throw(parse_mask(text));
}

FinishedExpr finish_expr(const NodeHandle& node, const Names& same, bool ignore_wishes) {
  return value_or_throw(finish(node, same, ignore_wishes));
}

std::vector<NodeHandle> operands_of(const NodeHandle& handle) {
  std::vector<NodeHandle> operands;
  for (const mask::BuilderNodePtr& operand : handle.node->operands)
    operands.push_back({operand, handle.depends_on_cell});
  return operands;
}

// A getter in C, not a property: torch.compile reads such getters and compares their values to tell
// whether a compiled graph fits a call. It reads them at every call, so the node caches the text.
PyObject* table_free_text(PyObject* self, void*) {
  NodeHandle& node = *nb::inst_ptr<NodeHandle>(self);
  try {
    if (!node.table_free_text.is_valid()) {
      const std::optional<std::string> text = text_without_tables(node);
      node.table_free_text = text ? nb::object(nb::str(text->c_str(), text->size())) : nb::none();
    }
    return nb::object(node.table_free_text).release().ptr();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyGetSetDef node_getters[] = {
    {"table_free_text", table_free_text, nullptr,
     "The text of the expression, not checked; None if the expression reads a\n"
     "table.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot node_slots[] = {{Py_tp_getset, node_getters}, {0, nullptr}};

}  // namespace

void bind_expr(nb::module_& module) {
  nb::class_<NodeHandle>(
      module, "ExprNode", nb::type_slots(node_slots),
      "One operation of an expression. Its operands may be shared; nothing changes\n"
      "them.")
      .def_prop_ro(
          "depends_on_cell", [](const NodeHandle& node) { return node.depends_on_cell; },
          "True if the value may differ between cells of one batch element and head.")
      .def_prop_ro("operands", &operands_of, "The operands, in order.")
      .def("text", &text_of, nb::arg("same") = Names{},
           "Returns the text of the expression, not checked. `same` is that of\n"
           "finish_expr.")
      .def("table_names", &table_names_of, nb::arg("same") = Names{},
           "Returns the names that text() gives to automatic tables, by symbol.");
  module.def("expr_node", &expr_node, nb::arg("op"),
             nb::arg("operands") = std::vector<NodeHandle>{}, nb::arg("value") = 0,
             nb::arg("symbol") = "",
             "Returns the operation of a name. Named masks are made by named_node.");
  module.def("fold_expr", &fold_expr, nb::arg("op"), nb::arg("operands"),
             "Returns the value of an operation on numbers, conditions being 0 and 1. It is\n"
             "None where the value is undefined.");
  module.def("named_masks", &named_masks,
             "Returns the name, the signature and an example of each form of a named mask.");
  module.def("operator_names", &operator_names,
             "Returns three names of each operation: the one here, the one in texts, and the\n"
             "method or function of Python.");
  module.def("named_node", &named_node, nb::arg("name"), nb::arg("operands"), nb::arg("keywords"),
             "Returns a named mask. The keyword of an operand that is given by position is\n"
             "\"\".");

  nb::class_<MaskExpr>(module, "Expr", "A finished expression. parse_expr and finish_expr make it.")
      .def_prop_ro("text", &MaskExpr::text,
                   "The text that was parsed, or the canonical spelling of an expression that\n"
                   "was not.")
      .def_prop_ro(
          "canonical_text", [](const MaskExpr& expr) { return to_text(expr); },
          "The text in the canonical spelling.")
      .def_prop_ro("table_names", &table_names, "The sorted names of the tables, without @.")
      .def_prop_ro("needs_selection", &needs_selection, "True if the expression has a topk.")
      .def("mentions", &mentions_variable, nb::arg("variable"),
           "True if the expression uses the variable.")
      .def(
          "dump", [](const MaskExpr& expr) { return dump(expr); },
          "Returns the operations as text, one on each line.")
      .def("node", &nodes_of, nb::arg("automatic"), nb::arg("number"),
           "Returns the nodes of the expression.\n\n"
           "Tables named in `automatic` and all loop variables get automatic symbols\n"
           "with `number`.")
      .def(
          "equals", [](const MaskExpr& a, const MaskExpr& b) { return a == b; }, nb::arg("other"),
          "True if both expressions have the same structure.");
  module.def("parse_expr", &parse_expr, nb::arg("text"),
             "Parses a specification. MaskSyntaxError shows the place of an error.");

  nb::class_<FinishedExpr>(module, "FinishedExpr", "A finished expression and its table names.")
      .def_prop_ro(
          "expr", [](const FinishedExpr& finished) { return finished.expr; }, "The expression.")
      .def_prop_ro(
          "table_names", [](const FinishedExpr& finished) { return finished.table_names; },
          "The names that automatic tables have in the expression, by symbol.");
  module.def("finish_expr", &finish_expr, nb::arg("node"), nb::arg("same") = Names{},
             nb::arg("ignore_wishes") = false,
             "Checks an expression and names its automatic tables and loop variables.\n\n"
             "Their symbols are #number:wish and %number:wish. `same` maps symbols to\n"
             "others of the same array. ignore_wishes=True makes the names depend on the\n"
             "structure alone. ValueError is raised for an expression that cannot be\n"
             "typed.");
}

}  // namespace fdma::python
