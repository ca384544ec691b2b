#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void attention_backward(ExecutionContext&, const AttentionArgs&) {
  throw NotSupported("attention_backward: not written yet");
}

}  // namespace sherd::cuda
