// CusparseAttention and cusparse_version: attention by calls of cuSPARSE, for benchmarks and tests.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "arrays/array_view.hpp"
#include "arrays/call_stream.hpp"
#include "arrays/python_error.hpp"
#include "bindings.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/cusparse_attention.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

CusparsePrecision parse_precision(const std::string& text) {
  if (text == "float32") return CusparsePrecision::float32;
  if (text == "tensor") return CusparsePrecision::tensor;
  refuse(ErrorCode::invalid_argument,
         fmt::format("precision: expected float32 or tensor, got '{}'", text));
}

CusparseSpmm parse_spmm(const std::string& text) {
  if (text == "alg1") return CusparseSpmm::alg1;
  if (text == "alg2") return CusparseSpmm::alg2;
  if (text == "alg3") return CusparseSpmm::alg3;
  refuse(ErrorCode::invalid_argument,
         fmt::format("spmm: expected alg1, alg2 or alg3, got '{}'", text));
}

CusparseAttention prepared(const BlockMask& mask, std::optional<std::int64_t> batch,
                           std::int64_t heads_q, std::optional<std::int64_t> heads_kv,
                           std::int64_t head_dim, std::optional<std::int64_t> head_dim_v,
                           const std::string& dtype, const std::optional<std::string>& out_dtype,
                           bool key_bias, const std::string& precision, const std::string& spmm,
                           const std::string& library) {
  AttentionShape shape;
  shape.batch = batch.value_or(mask.shape.num_batches);
  shape.heads_q = checked_count("heads_q", heads_q);
  shape.heads_kv = checked_count("heads_kv", heads_kv.value_or(heads_q));
  shape.q_lens = mask.shape.q_lens;
  shape.kv_lens = mask.shape.kv_lens;
  shape.head_dim = checked_count("head_dim", head_dim);
  shape.head_dim_v = checked_count("head_dim_v", head_dim_v.value_or(head_dim));
  shape.q_dtype = shape.k_dtype = shape.v_dtype = parse_dtype("dtype", dtype);
  shape.out_dtype = out_dtype ? parse_dtype("out_dtype", *out_dtype) : shape.q_dtype;
  CusparseOptions options;
  options.precision = parse_precision(precision);
  options.spmm = parse_spmm(spmm);
  options.library = library;
  const nb::gil_scoped_release released;
  return value_or_throw(CusparseAttention::make(mask, shape, {.key_bias = key_bias}, options));
}

void run(CusparseAttention& attention, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
         const std::optional<nb::object>& lse, const std::optional<nb::object>& key_bias,
         std::optional<float> softmax_scale, nb::handle stream) {
  if (softmax_scale && (!std::isfinite(*softmax_scale) || *softmax_scale == 0)) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("softmax_scale: expected a finite number other than 0, got {}",
                       *softmax_scale));
  }
  const Place place{Device::cuda, attention.device()};
  AttentionTensors tensors;
  const auto read = [&](const char* name, nb::handle object) {
    InputArray array = input_array(name, object);
    check_on(name, array.place, place);
    return array;
  };
  const InputArray q_array = read("q", q), k_array = read("k", k), v_array = read("v", v);
  tensors.q = q_array.view;
  tensors.kv = {KvLayout::contiguous, k_array.view, v_array.view};
  InputArray bias_array;
  if (key_bias) {
    bias_array = read("key_bias", *key_bias);
    tensors.key_bias = bias_array.view;
  }
  const OutputArray out_array = output_array("out", out);
  check_on("out", out_array.place, place);
  tensors.out = out_array.view;
  OutputArray lse_array;
  if (lse) {
    lse_array = output_array("lse", *lse);
    check_on("lse", lse_array.place, place);
    tensors.lse = lse_array.view;
  }
  for (const auto& [name, input] :
       {std::pair{"q", tensors.q}, {"k", tensors.kv.k}, {"v", tensors.kv.v}}) {
    check_apart("out", tensors.out.view(), name, input);
    if (lse) check_apart("lse", tensors.lse.view(), name, input);
  }
  if (lse) check_apart("lse", tensors.lse.view(), "out", tensors.out.view());
  AttentionOptions options;
  options.softmax_scale = softmax_scale.value_or(0);
  const CallStream call(place, stream, q);
  const nb::gil_scoped_release released;
  value_or_throw(attention.forward(tensors, call.stream(), options));
}

}  // namespace

void bind_cusparse(nb::module_& module) {
  nb::class_<CusparseAttention>(
      module, "CusparseAttention",
      "Attention by cuSPARSE alone (SDDMM, softmax, SpMM). It is prepared once for\n"
      "a mask.\n\n"
      "FDMA is compared with it in tests and benchmarks.")
      .def(
          "__init__",
          [](CusparseAttention* self, const BlockMask& mask, std::optional<std::int64_t> batch,
             std::int64_t heads_q, std::optional<std::int64_t> heads_kv, std::int64_t head_dim,
             std::optional<std::int64_t> head_dim_v, const std::string& dtype,
             const std::optional<std::string>& out_dtype, bool key_bias,
             const std::string& precision, const std::string& spmm, const std::string& library) {
            new (self)
                CusparseAttention(prepared(mask, batch, heads_q, heads_kv, head_dim, head_dim_v,
                                           dtype, out_dtype, key_bias, precision, spmm, library));
          },
          nb::arg("mask"), nb::kw_only(), nb::arg("batch") = nb::none(), nb::arg("heads_q"),
          nb::arg("heads_kv") = nb::none(), nb::arg("head_dim"), nb::arg("head_dim_v") = nb::none(),
          nb::arg("dtype") = "float32", nb::arg("out_dtype") = nb::none(),
          nb::arg("key_bias") = false, nb::arg("precision") = "float32", nb::arg("spmm") = "alg3",
          nb::arg("library") = "",
          nb::sig("def __init__(self, mask: BlockMask, *, batch: int | None = None, heads_q: int, "
                  "heads_kv: int | None = None, head_dim: int, head_dim_v: int | None = None, "
                  "dtype: _DType = 'float32', out_dtype: _DType | None = None, key_bias: bool = "
                  "False, precision: Literal['float32', 'tensor'] = 'float32', spmm: "
                  "Literal['alg1', 'alg2', 'alg3'] = 'alg3', library: str = '') -> None"),
          "Prepares attention on the current device.\n\n"
          "precision='tensor' keeps the types of the tensors where cuSPARSE accepts\n"
          "them. library is the path of libcusparse.so.12 or of its folder.\n"
          "NotImplementedError is raised without the library.")
      .def("run", &run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("out"),
           nb::arg("lse") = nb::none(), nb::arg("key_bias") = nb::none(),
           nb::arg("softmax_scale") = nb::none(), nb::arg("stream").none() = nb::none(),
           nb::sig("def run(self, q: Array, k: Array, v: Array, *, out: Array, lse: Array | None = "
                   "None, key_bias: Array | None = None, softmax_scale: float | None = None, "
                   "stream: _Stream | None = None) -> None"),
           "Computes attention() into out and lse. Calls must not overlap.")
      .def_prop_ro("device", &CusparseAttention::device, "The index of the GPU.")
      .def_prop_ro("nbytes", &CusparseAttention::size_bytes, "Bytes of device memory.")
      .def_prop_ro("num_cells", &CusparseAttention::num_cells,
                   "The number of cells of all distinct masks.");
  module.def(
      "cusparse_version",
      [](const std::string& library) { return value_or_throw(cusparse_version(library)); },
      nb::arg("library") = "",
      "Returns the version of cuSPARSE that CusparseAttention would use.\n\n"
      "NotImplementedError is raised without one.");
}

}  // namespace fdma::python
