#include <sherd/kernels/rest/cuda_forms.h>

namespace sherd::cuda {
namespace {

template <bool kJoins>
struct Halves {
  static constexpr int kVec = 4;
  SplitArgs a;

  template <int N>
  __device__ void run(int64_t i) const {
    const InHalves halves{a.high, a.low};
    if constexpr (kJoins) {
      store(a.whole, i, halves.get<N>(i));
    } else {
      halves.put(i, load<N>(a.whole, i), NoDraw{}, NoiseUse::weight);
    }
  }
};

void split_each(ExecutionContext& context, const SplitArgs& a) {
  for_elements(context, "split", Halves<false>{a}, a.count, a.whole, a.high, a.low);
}

void join_each(ExecutionContext& context, const SplitArgs& a) {
  for_elements(context, "join", Halves<true>{a}, a.count, a.whole, a.high, a.low);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const RestKernels* RestKernels::cuda() {
  static constexpr RestKernels table{.split = cuda::split_each, .join = cuda::join_each};
  return &table;
}

}  // namespace sherd
