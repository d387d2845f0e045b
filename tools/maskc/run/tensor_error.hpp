// The error of a tensor against its float64 reference, and the bound that it must keep.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "cli/json_output.hpp"

namespace fdma::maskc {

/// A row of a tensor. It belongs to a query or to a key.
struct TensorRow {
  std::int64_t batch = 0, head = 0, row = 0;
  friend bool operator==(const TensorRow&, const TensorRow&) = default;
  friend bool operator<(const TensorRow& a, const TensorRow& b) {
    return std::tie(a.batch, a.head, a.row) < std::tie(b.batch, b.head, b.row);
  }
};

/// One tensor against the reference. The tensor is right if no element is wrong and the largest
/// error is at most twice that of an explicit computation in the tensors' own types (the
/// yardstick), plus 1e-5 of the largest reference value.
struct TensorError {
  double max_error = 0;
  double yardstick = 0;      ///< the largest error of the explicit computation
  double max_reference = 0;  ///< the largest magnitude of the reference
  /// Elements whose NaN, infinity or exact value (rows without keys) is wrong.
  std::int64_t num_wrong = 0;
  TensorRow place;  ///< where the first wrong element or else the largest error is

  double bound() const { return 2 * yardstick + 1e-5 * max_reference; }
  bool is_right() const { return num_wrong == 0 && max_error <= bound(); }

  /// Adds one element. `explicit_value` is the yardstick's; with `is_exact` no error is allowed.
  /// The place does not depend on the order of elements: it is the first wrong one, else the first
  /// of those with the largest error.
  void take(double reference, double explicit_value, double got, const TensorRow& row,
            bool is_exact);
  void merge(const TensorError& other);
};

/// "out 1.20e-07 (bound ..)"
std::string error_text(const char* name, const TensorError& error);
/// Appends a line to `text` if the tensor is not right. `what` names a row of the tensor.
void append_complaint(std::string& text, const char* name, const char* what,
                      const TensorError& error);
Json to_json(const TensorError& error);

}  // namespace fdma::maskc
