#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void gram_product(ExecutionContext&, const GramProductArgs&) {
  throw NotSupported("gram_product: not written yet");
}
void gram_iterate(ExecutionContext&, const GramIterateArgs&) {
  throw NotSupported("gram_iterate: not written yet");
}
void gram_apply(ExecutionContext&, const GramApplyArgs&) {
  throw NotSupported("gram_apply: not written yet");
}

}  // namespace sherd::cuda
