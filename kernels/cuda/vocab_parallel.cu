#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void vocab_parallel_partial(ExecutionContext&, const VocabParallelArgs&) {
  throw NotSupported("vocab_parallel_partial: not written yet");
}
void vocab_parallel_combine(ExecutionContext&, const VocabParallelArgs&) {
  throw NotSupported("vocab_parallel_combine: not written yet");
}
void vocab_parallel_backward(ExecutionContext&, const VocabParallelArgs&) {
  throw NotSupported("vocab_parallel_backward: not written yet");
}

}  // namespace sherd::cuda
