// Dynamic Mask Attention on the GPU in a build without CUDA: every call returns an error that says
// so.
#include "dynamic_mask/device_call.hpp"

namespace fdma::dynamic_mask {

Result<std::unique_ptr<DeviceCall>> make_device_call(const DynamicMaskSpec&, const TopkRows&,
                                                     Stream) {
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  return Error{ErrorCode::internal, "make_device_call: a build without CUDA has no GPU backend"};
}

}  // namespace fdma::dynamic_mask
