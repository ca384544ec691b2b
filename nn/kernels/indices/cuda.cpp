#include <sherd/nn/kernels/indices/indices.h>

#include <sherd/kernels/device/cuda/queue.h>

namespace sherd::cuda {
namespace {

void check_indices(ExecutionContext& context, const char* op, const char* what, const int32_t* indices,
                   int64_t count, int64_t bound, int64_t first) {
  queue_of(context).index_guard().look(context, op, what, indices, count, bound, first);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const IndicesKernels* IndicesKernels::cuda() {
  static constexpr IndicesKernels table{.check_indices = cuda::check_indices};
  return &table;
}

}  // namespace sherd
