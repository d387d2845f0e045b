// Backward calls of closed-form plans whose lengths and documents are those of the call.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_fixture.hpp"

namespace fdma::testing {

/// Plans a random mask in closed form of up to `most` queries and keys and
/// calls by that plan twice, with other lengths and documents each time; what is wrong with the
/// gradients, empty if nothing. Where `backward` asks for deterministic calls each is run again and
/// must give the same bits.
std::string random_calls_error(BackendFixture& fixture, std::uint32_t seed, std::int64_t most,
                               CaseChoice choice, const BackwardChoice& backward = {});

}  // namespace fdma::testing
