// The accumulation order of work tiles of a kv worklist in deterministic calls, on host and device.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// The sort key of a work tile among those of its KV head that begin in the same segment of
/// queries. Work tiles that begin last come first: when other work tiles reach their tiles, they
/// have added or are done. Among work tiles that begin together, most of them at the begin of the
/// segment, those that end last come first: the others are done early and wait for none that goes
/// on.
struct WorklistPlace {
  std::int32_t begin_tile, end_tile, key_tile;

  friend FDMA_HOST_DEVICE bool operator<(const WorklistPlace& a, const WorklistPlace& b) {
    if (a.begin_tile != b.begin_tile) return a.begin_tile > b.begin_tile;
    if (a.end_tile != b.end_tile) return a.end_tile > b.end_tile;
    return a.key_tile < b.key_tile;
  }
};

}  // namespace fdma
