// Lattices of translations of tiles, as the periodic engine names them.
#pragma once

#include "fdma/formats/tile_lattice.hpp"
