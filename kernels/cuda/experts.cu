#include "cuda.h"
#include "launch.h"

namespace sherd::cuda {

void route_top_k(ExecutionContext&, const RouteArgs&) { throw NotSupported("route_top_k: not written yet"); }
void route_top_k_backward(ExecutionContext&, const RouteArgs&) {
  throw NotSupported("route_top_k_backward: not written yet");
}
void sort_by_expert(ExecutionContext&, const ExpertSortArgs&) {
  throw NotSupported("sort_by_expert: not written yet");
}
void expand_rows(ExecutionContext&, const ExpertRowsArgs&) {
  throw NotSupported("expand_rows: not written yet");
}
void combine_rows(ExecutionContext&, const ExpertRowsArgs&) {
  throw NotSupported("combine_rows: not written yet");
}
void combine_gates_backward(ExecutionContext&, const ExpertRowsArgs&) {
  throw NotSupported("combine_gates_backward: not written yet");
}

}  // namespace sherd::cuda
