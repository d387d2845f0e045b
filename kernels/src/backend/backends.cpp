// The registry of backends, and what is asked of them all: names, availability, prepared plans.
#include "fdma/kernels/backends.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "backend/known_backends.hpp"
#include "calibrate/options.hpp"
#include "fdma/kernels/attention_backend.hpp"

namespace fdma {
namespace {

constexpr std::size_t kMaxBackends = 16;

// Backends are added and never removed, so that readers need no lock.
class Registry {
 public:
  Registry() {
    for (std::unique_ptr<AttentionBackend>& each : known_backends()) {
      static_cast<void>(add(std::move(each)));
    }
  }

  Result<Backend> add(std::unique_ptr<AttentionBackend> backend) {
    const std::lock_guard lock(mutex_);
    const std::size_t index = size_;
    for (std::size_t i = 0; i < index; ++i) {
      if (at(i).traits().name == backend->traits().name) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("backend: there is a {} already", backend->traits().name)};
      }
    }
    if (index == kMaxBackends) {
      return Error{ErrorCode::unsupported,
                   fmt::format("backend: at most {} can be registered", kMaxBackends)};
    }
    backends_[index] = std::move(backend);
    size_ = index + 1;
    return Backend(static_cast<std::uint8_t>(index));
  }

  std::size_t size() const { return size_; }
  const AttentionBackend& at(std::size_t index) const { return *backends_[index]; }

 private:
  std::mutex mutex_;
  std::array<std::unique_ptr<AttentionBackend>, kMaxBackends> backends_;
  std::atomic<std::size_t> size_ = 0;
};

// It is never destroyed, since plans of other static objects may outlive it.
Registry& registry() {
  static auto* const the_registry = new Registry;
  return *the_registry;
}

const AttentionBackend& implementation_of(Backend backend) {
  return registry().at(backend.index());
}

template <class Backends>
std::string names_of(const Backends& backends) {
  std::string names;
  for (const Backend each : backends) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(each));
  }
  return names;
}

}  // namespace

const BackendTraits& Backend::traits() const { return implementation_of(*this).traits(); }

std::string_view to_string(Backend backend) { return backend.traits().name; }

std::vector<Backend> registered_backends() {
  std::vector<Backend> backends;
  for (std::size_t i = 0; i < registry().size(); ++i) {
    backends.emplace_back(static_cast<std::uint8_t>(i));
  }
  return backends;
}

Result<Backend> parse_backend(std::string_view name) {
  const std::vector<Backend> backends = registered_backends();
  for (const Backend backend : backends) {
    if (name == to_string(backend)) return backend;
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("backend: expected one of {}, got '{}'", names_of(backends), name)};
}

std::vector<Backend> available_backends() {
  std::vector<Backend> available;
  for (const Backend backend : registered_backends()) {
    if (implementation_of(backend).check_here()) available.push_back(backend);
  }
  return available;
}

Result<void> check_backend(Backend backend) {
  const Result<void> checked = implementation_of(backend).check_here();
  if (checked) return {};
  return Error{checked.error().code,
               fmt::format("backend {}: {}; available: {}", to_string(backend),
                           checked.error().message, names_of(available_backends()))};
}

Backend default_backend() {
  const Backend gpu = backend_for(Device::cuda);
  return implementation_of(gpu).check_here() ? gpu : Backend::cpu;
}

Backend backend_for(Device device) {
  Backend first = Backend::cpu;
  for (const Backend backend : registered_backends()) {
    if (backend.traits().device != device) continue;
    if (implementation_of(backend).check_here()) return backend;
    if (first == Backend::cpu) first = backend;
  }
  return first;
}

Result<Backend> register_backend(std::unique_ptr<AttentionBackend> backend) {
  return registry().add(std::move(backend));
}

Result<DeviceProfile> AttentionBackend::calibrate(const CalibrateOptions& /*options*/) const {
  return Error{ErrorCode::unsupported,
               fmt::format("calibrate: backend {} cannot be measured", traits().name)};
}

Result<std::unique_ptr<PreparedPlan>> prepare(std::shared_ptr<const AttentionPlan> plan,
                                              Stream stream, const PrepareOptions& options) {
  FDMA_TRY_VOID(check_backend(plan->backend));
  const AttentionBackend& backend = implementation_of(plan->backend);
  return backend.prepare(std::move(plan), stream, options);
}

Result<std::unique_ptr<PreparedPlan>> prepare(AttentionPlan plan, Stream stream,
                                              const PrepareOptions& options) {
  return prepare(std::make_shared<const AttentionPlan>(std::move(plan)), stream, options);
}

CalibrateOptions calibrate_options(Backend backend) {
  const BackendTraits& traits = backend.traits();
  CalibrateOptions options;
  options.backend = backend;
  if (traits.has_one_tile) options.tiles = {traits.tile};
  if (traits.needs_16_bits) options.dtypes = {DType::bfloat16};  // float16 runs as fast
  return options;
}

Result<DeviceProfile> calibrate(const CalibrateOptions& options) {
  FDMA_TRY_VOID(check_calibrate_options(options));
  FDMA_TRY_VOID(check_backend(options.backend));
  try {
    return implementation_of(options.backend).calibrate(options);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "calibrate: not enough memory for its tensors"};
  }
}

}  // namespace fdma
