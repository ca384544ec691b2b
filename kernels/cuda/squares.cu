#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void accumulate_squares(ExecutionContext&, int64_t*, const float*, int64_t) {
  throw NotSupported("accumulate_squares: not written yet");
}
void accumulate_sum(ExecutionContext&, double*, const float*, int64_t) {
  throw NotSupported("accumulate_sum: not written yet");
}
void clip_factor(ExecutionContext&, const ClipFactorArgs&) {
  throw NotSupported("clip_factor: not written yet");
}

}  // namespace sherd::cuda
