// Availability of the backends: which ones this build and this machine can run, and the reason
// where one cannot.
#include "fdma/kernels/backends.hpp"

#include <fmt/format.h>

#include "backend/gpu_check.hpp"

namespace fdma {
namespace {

Result<void> check(Backend backend) {
  switch (backend) {
    case Backend::cpu:
      return {};
    case Backend::sm90:
      return check_sm90_device();
    case Backend::sm80:
      break;
  }
  return Error{ErrorCode::unsupported, "it has no kernels yet"};
}

}  // namespace

std::vector<Backend> available_backends() {
  std::vector<Backend> available;
  for (const Backend backend : {Backend::cpu, Backend::sm90, Backend::sm80}) {
    if (check(backend)) available.push_back(backend);
  }
  return available;
}

Result<void> check_backend(Backend backend) {
  const Result<void> checked = check(backend);
  if (checked) return {};
  std::string names;
  for (const Backend each : available_backends()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(each));
  }
  return Error{checked.error().code,
               fmt::format("backend {}: {}; available: {}", to_string(backend),
                           checked.error().message, names)};
}

Backend default_backend() { return check(Backend::sm90) ? Backend::sm90 : Backend::cpu; }

}  // namespace fdma
