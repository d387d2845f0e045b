#include "run/tensor_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/number_text.hpp"

namespace fdma::maskc {

void TensorError::take(double reference, double explicit_value, double got, const TensorRow& row,
                       bool is_exact) {
  if (!std::isfinite(reference) || !std::isfinite(got) || is_exact) {
    if (reference == got || (std::isnan(reference) && std::isnan(got))) return;
    if (num_wrong == 0 || row < place) place = row;
    ++num_wrong;
    return;
  }
  max_reference = std::max(max_reference, std::abs(reference));
  if (std::isfinite(explicit_value)) {
    yardstick = std::max(yardstick, std::abs(explicit_value - reference));
  }
  const double error = std::abs(got - reference);
  const bool is_worst = error > max_error || (error == max_error && row < place);
  if (is_worst && num_wrong == 0) place = row;
  max_error = std::max(max_error, error);
}

void TensorError::merge(const TensorError& other) {
  const bool is_earlier = other.place < place;
  const bool takes_place = other.num_wrong > 0
                               ? num_wrong == 0 || is_earlier
                               : num_wrong == 0 && (other.max_error > max_error ||
                                                    (other.max_error == max_error && is_earlier));
  if (takes_place) place = other.place;
  num_wrong += other.num_wrong;
  max_error = std::max(max_error, other.max_error);
  yardstick = std::max(yardstick, other.yardstick);
  max_reference = std::max(max_reference, other.max_reference);
}

std::string error_text(const char* name, const TensorError& error) {
  return fmt::format("{} {:.2e} (bound {:.2e})", name, error.max_error, error.bound());
}

void append_complaint(std::string& text, const char* name, const char* what,
                      const TensorError& error) {
  if (error.is_right()) return;
  if (!text.empty()) text += '\n';
  const std::string place = fmt::format("batch {}, head {}, {} {}", error.place.batch,
                                        error.place.head, what, error.place.row);
  text += error.num_wrong > 0
              ? fmt::format(
                    "{}: {} not as the float64 reference has them (NaN, infinite, or of "
                    "a row without keys), the first at {}",
                    name, plural(error.num_wrong, "element"), place)
              : fmt::format("{}: max abs error {:.3e}, bound {:.3e}, at {}", name, error.max_error,
                            error.bound(), place);
}

Json to_json(const TensorError& error) {
  return {{"right", error.is_right()},
          {"max_error", error.max_error},
          {"bound", error.bound()},
          {"yardstick", error.yardstick},
          {"max_reference", error.max_reference},
          {"num_wrong", error.num_wrong}};
}

}  // namespace fdma::maskc
