#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void muon_momentum(ExecutionContext&, const MuonMomentumArgs&) {
  throw NotSupported("muon_momentum: not written yet");
}
void muon_update(ExecutionContext&, const MuonUpdateArgs&) {
  throw NotSupported("muon_update: not written yet");
}
void copy_segments(ExecutionContext&, const CopySegmentsArgs&) {
  throw NotSupported("copy_segments: not written yet");
}

}  // namespace sherd::cuda
