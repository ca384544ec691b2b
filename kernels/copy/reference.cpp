#include <sherd/kernels/copy/copy.h>

#include <cstring>

namespace sherd::reference {
namespace {

void copy(ExecutionContext&, void* dst, const void* src, int64_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
}

void strided_copy(ExecutionContext&, const StridedCopyArgs& a) {
  for (int64_t i = 0; i < a.blocks; ++i)
    std::memcpy(a.dst + i * a.dst_stride, a.src + i * a.src_stride, static_cast<size_t>(a.run));
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const CopyKernels* CopyKernels::reference() {
  static constexpr CopyKernels table{.copy = reference::copy, .strided_copy = reference::strided_copy};
  return &table;
}

const CopyKernels* CopyKernels::cpu() { return reference(); }

}  // namespace sherd
