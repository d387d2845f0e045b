#include "cpu/worker_bytes.hpp"

#include "cpu/backward.hpp"
#include "cpu/call.hpp"

namespace fdma::cpu {

std::int64_t worker_bytes(const AttentionShape& shape, BlockShape tile, Direction direction) {
  return direction == Direction::backward ? BackwardWorkspace::bytes(shape, tile)
                                          : Workspace::bytes(shape, tile);
}

}  // namespace fdma::cpu
