#include "attention/call_score.hpp"

#include <fmt/format.h>

#include "arrays/python_error.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

constexpr std::size_t kNumFields = 11;

}  // namespace

ScoreSpec CallScore::spec() const {
  return {.softcap = softcap != 0,
          .key_bias = key_bias.data != nullptr,
          .bias = bias.data != nullptr,
          .alibi = alibi_slopes.data != nullptr,
          .relative_table = relative.data != nullptr,
          .sink = sinks.data != nullptr,
          .dropout = dropout.rate > 0};
}

GivenScore::GivenScore(nb::handle given) : given_(given) {
  if (given.is_none()) return;
  if (!PyTuple_Check(given.ptr())) {
    throw nb::type_error("score: expected None or a tuple of the fields of ScoreArguments");
  }
  size_ = static_cast<std::size_t>(PyTuple_Size(given.ptr()));
  if (size_ > kNumFields) throw nb::type_error("score: more fields than ScoreArguments has");
}

nb::handle GivenScore::at(std::size_t field) const {
  if (field >= size_) return Py_None;
  return PyTuple_GetItem(given_.ptr(), static_cast<Py_ssize_t>(field));
}

void GivenScore::set_numbers(CallScore& score) const {
  const auto number = [&](std::size_t field) { return nb::cast<double>(at(field)); };
  // A 64-bit pattern; PyTorch's operators have signed integers alone.
  const auto bits = [&](std::size_t field) {
    const std::uint64_t value = PyLong_AsUnsignedLongLongMask(at(field).ptr());
    if (value == ~std::uint64_t{0} && PyErr_Occurred() != nullptr) throw nb::python_error();
    return value;
  };
  if (size_ > 6) score.softcap = static_cast<float>(number(6));
  if (size_ > 7) score.relative_left = nb::cast<std::int64_t>(at(7));
  if (size_ > 8) score.dropout.rate = number(8);
  if (size_ > 9) score.dropout.seed = bits(9);
  if (size_ > 10) score.dropout.offset = bits(10);
}

void GivenScore::set_seed(CallScore& score, const TensorView& seed) {
  if (seed.data == nullptr) return;
  if ((seed.dtype != DType::int64 && seed.dtype != DType::uint64) || seed.rank != 1 ||
      seed.extents[0] != 2 || seed.strides[0] != 1) {
    refuse(ErrorCode::shape_mismatch,
           fmt::format("dropout_seed: expected two adjacent int64 (seed, offset), got {} of rank "
                       "{} with extent {}",
                       to_string(seed.dtype), seed.rank, seed.extents[0]));
  }
  score.dropout.seed_at = static_cast<const std::uint64_t*>(seed.data);
  score.dropout.offset_at = score.dropout.seed_at + 1;
}

}  // namespace fdma::python
