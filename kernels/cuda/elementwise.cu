#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void fill(ExecutionContext&, Ref, int64_t, double) { throw NotSupported("fill: not written yet"); }
void copy(ExecutionContext&, void*, const void*, int64_t) { throw NotSupported("copy: not written yet"); }
void cast(ExecutionContext&, Ref, Ref, int64_t) { throw NotSupported("cast: not written yet"); }
void scale(ExecutionContext&, Ref, int64_t, float) { throw NotSupported("scale: not written yet"); }
void scale_by(ExecutionContext&, float*, int64_t, const float*) {
  throw NotSupported("scale_by: not written yet");
}
void scaled_add(ExecutionContext&, float*, float, Ref, int64_t) {
  throw NotSupported("scaled_add: not written yet");
}
void scale_and_add(ExecutionContext&, float*, float, float, const float*, int64_t) {
  throw NotSupported("scale_and_add: not written yet");
}
void add(ExecutionContext&, Ref, Ref, Ref, int64_t) { throw NotSupported("add: not written yet"); }
void strided_copy(ExecutionContext&, const StridedCopyArgs&) {
  throw NotSupported("strided_copy: not written yet");
}
void add_words(ExecutionContext&, int64_t*, const int64_t*, int64_t) {
  throw NotSupported("add_words: not written yet");
}

}  // namespace sherd::cuda
