#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void reduce(ExecutionContext&, const ReduceArgs&) { throw NotSupported("reduce: not written yet"); }

}  // namespace sherd::cuda
