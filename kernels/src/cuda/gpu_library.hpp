// What host code asks of a GPU: interfaces that only a build with CUDA implements. The sources that
// ask are compiled in every build; gpu_library() alone knows whether there is an implementation.
//
// This header declares the interfaces and includes none of them: each is defined in its room, and a
// CUDA source of that room implements it. So it stands below all of these rooms.
#pragma once

#include "fdma/base/result.hpp"

namespace fdma {

class GpuMemory;   // cuda/gpu_memory.hpp
class GpuStreams;  // cuda/gpu_streams.hpp

/// The interfaces of a build with CUDA. They exist whether or not the machine has a GPU.
struct GpuLibrary {
  const GpuMemory& memory;
  const GpuStreams& streams;
};

/// Errors      unsupported: this build has no CUDA
Result<const GpuLibrary*> gpu_library();

/// The implementations, for gpu_library() alone. The CUDA source that is named
/// defines each.
namespace with_cuda {
const GpuMemory& memory();    // cuda/device_memory.cu
const GpuStreams& streams();  // cuda/device_stream.cu
}  // namespace with_cuda

}  // namespace fdma
