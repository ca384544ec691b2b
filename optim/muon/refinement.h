// Names of refinements that older programs use.
#pragma once

#include <sherd/optim/whole/refinement.h>

namespace sherd {

using MuonPiece = MatrixPiece;
using MuonResults = MatrixResults;
using MuonRefinement = MatrixRefinement;

}  // namespace sherd
