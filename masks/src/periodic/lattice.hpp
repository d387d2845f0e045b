// Lattices of translations of tiles, as the periodic engine names them.
#pragma once

#include "fdma/formats/tile_lattice.hpp"

namespace fdma::periodic {

using fdma::PatternPeriod;
using fdma::period_along;
using fdma::period_of;
using fdma::TileLattice;
using fdma::Translation;

}  // namespace fdma::periodic
