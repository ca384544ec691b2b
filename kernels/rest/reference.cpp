#include <sherd/kernels/rest/rest.h>

namespace sherd::reference {
namespace {

void split_each(ExecutionContext&, const SplitArgs& a) {
  for (int64_t i = 0; i < a.count; ++i) {
    const SplitWeight w = split(a.whole[i]);
    a.high[i] = w.high;
    a.low[i] = w.low;
  }
}

void join_each(ExecutionContext&, const SplitArgs& a) {
  for (int64_t i = 0; i < a.count; ++i) a.whole[i] = joined({a.high[i], a.low[i]});
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const RestKernels* RestKernels::reference() {
  static constexpr RestKernels table{.split = reference::split_each, .join = reference::join_each};
  return &table;
}

// A few operations a step at most: when weights are made, saved or loaded.
const RestKernels* RestKernels::cpu() { return reference(); }

}  // namespace sherd
