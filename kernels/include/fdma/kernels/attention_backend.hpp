// The interface of a backend, by which one is added: docs/developing/backend.md.
#pragma once

#include <memory>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/calibrate.hpp"
#include "fdma/kernels/prepared_plan.hpp"

namespace fdma {

/// One implementation of attention.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  virtual const BackendTraits& traits() const = 0;
  /// Whether it can run here; `unsupported`, with the reason.
  virtual Result<void> check_here() const = 0;
  /// prepare (prepared_plan.hpp) for a plan of this backend, where check_here succeeds.
  virtual Result<std::unique_ptr<PreparedPlan>> prepare(std::shared_ptr<const AttentionPlan> plan,
                                                        Stream stream,
                                                        const PrepareOptions& options) const = 0;
  /// calibrate (calibrate.hpp) with options that were checked, where check_here succeeds;
  /// `unsupported` unless the backend says how it is measured.
  virtual Result<DeviceProfile> calibrate(const CalibrateOptions& options) const;
};

/// Adds a backend, whose name must be new, for the rest of the process. make_plan, prepare, parsing
/// and calibration know it from then on. Any thread may call this.
///
/// Errors      invalid_argument: the name is taken; unsupported: there are 16 already
Result<Backend> register_backend(std::unique_ptr<AttentionBackend> backend);

}  // namespace fdma
