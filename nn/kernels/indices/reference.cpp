#include <sherd/nn/kernels/indices/indices.h>

#include <sherd/base/error.h>
#include <sherd/kernels/device/detail/bad_index.h>

namespace sherd::reference {
namespace {

void check_indices(ExecutionContext&, const char* op, const char* what, const int32_t* indices, int64_t count,
                   int64_t bound, int64_t first) {
  for (int64_t i = 0; i < count; ++i)
    if (indices[i] < first || indices[i] >= bound)
      throw InvalidArgument(bad_index(op, what, indices[i], i, bound));
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const IndicesKernels* IndicesKernels::reference() {
  static constexpr IndicesKernels table{.check_indices = reference::check_indices};
  return &table;
}

const IndicesKernels* IndicesKernels::cpu() { return reference(); }

}  // namespace sherd
