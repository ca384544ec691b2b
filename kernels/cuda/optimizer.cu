#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void adamw(ExecutionContext&, const AdamWArgs&) { throw NotSupported("adamw: not written yet"); }

}  // namespace sherd::cuda
