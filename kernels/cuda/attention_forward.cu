#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void attention_forward(ExecutionContext&, const AttentionArgs&) {
  throw NotSupported("attention_forward: not written yet");
}

}  // namespace sherd::cuda
