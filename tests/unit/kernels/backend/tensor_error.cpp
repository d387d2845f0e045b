#include "backend/tensor_error.hpp"

#include <fmt/format.h>

namespace fdma::testing {

std::string to_string(const RowPlace& place) {
  return fmt::format("b {}, h {}, row {}", place.b, place.h, place.row);
}

std::string bound_error(std::string_view name, const TensorError& error) {
  if (error.is_within_bound()) return {};
  return fmt::format(
      "{}: error {} of at most {} (explicit {}, magnitude {}) at {}: {}, expected {}", name,
      error.fdma, error.bound(), error.explicit_, error.magnitude, to_string(error.where),
      error.got, error.wanted);
}

}  // namespace fdma::testing
