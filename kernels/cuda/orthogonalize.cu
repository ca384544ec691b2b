#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void orthogonalize(ExecutionContext&, const OrthogonalizeArgs&) {
  throw NotSupported("orthogonalize: not written yet");
}

}  // namespace sherd::cuda
