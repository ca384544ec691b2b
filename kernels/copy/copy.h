// Copies, between host and device and within it. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// `blocks` runs of `run` bytes; run i starts at dst + i * dst_stride and src + i * src_stride (bytes).
struct StridedCopyArgs {
  char* dst = nullptr;
  const char* src = nullptr;
  int64_t dst_stride = 0, src_stride = 0, blocks = 0, run = 0;
};

struct CopyKernels {
  static constexpr const char* kName = "copy";
  static const CopyKernels* reference();
  static const CopyKernels* cpu();
  static const CopyKernels* cuda();

  /// Between any two of host and device memory.
  void (*copy)(ExecutionContext&, void* dst, const void* src, int64_t bytes);
  void (*strided_copy)(ExecutionContext&, const StridedCopyArgs&);
};

namespace ops {

/// Same dtype and element count. Counted in Device::copied_bytes().
void copy(Stream& s, const Tensor& dst, const Tensor& src);
/// Copies host memory into dst; the bytes are taken before the call returns.
void copy_from_host(Stream& s, const Tensor& dst, const void* src, int64_t bytes);
/// Waits for the stream, then copies into host memory.
void copy_to_host(Stream& s, void* dst, const Tensor& src);
/// copy_to_host into a vector of floats; src is f32, bf16 or f16.
std::vector<float> to_floats(Stream& s, const Tensor& src);
/// `blocks` runs of `run` elements; run i begins at element i * stride of each tensor. One dtype; runs of dst
/// do not overlap. Counted in Device::copied_bytes().
void strided_copy(Stream& s, const Tensor& dst, int64_t dst_stride, const Tensor& src, int64_t src_stride,
                  int64_t blocks, int64_t run);

}  // namespace ops
}  // namespace sherd
