// Backward calls of closed-form plans that bring their own lengths and documents.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_fixture.hpp"

namespace fdma::testing {

/// Plans a random closed-form mask of up to `most` queries and keys and calls by that plan twice,
/// with other lengths and documents each time. If `backward` asks for deterministic calls, each
/// call is run again and must give the same bits. Says what is wrong with the gradients; empty if
/// nothing is.
std::string random_calls_error(BackendFixture& fixture, std::uint32_t seed, std::int64_t most,
                               CaseChoice choice, const BackwardChoice& backward = {});

}  // namespace fdma::testing
