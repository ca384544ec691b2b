#include <sherd/kernels/copy/copy.h>

#include <sherd/kernels/device/cuda/vector.h>

namespace sherd::cuda {
namespace {

constexpr int kMostRows = 65535;  // of a grid in y

/// Runs of `words` words; strides in words.
template <class Word>
__global__ void __launch_bounds__(256) copy_runs(Word* dst, const Word* src, int64_t dst_stride,
                                                 int64_t src_stride, int64_t blocks, int64_t words) {
  for (int64_t b = blockIdx.y; b < blocks; b += gridDim.y)
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
         i += int64_t{gridDim.x} * blockDim.x)
      dst[b * dst_stride + i] = src[b * src_stride + i];
}

template <class Word>
bool copy_runs_of(ExecutionContext& context, const StridedCopyArgs& a) {
  constexpr int64_t kSize = sizeof(Word);
  if (reinterpret_cast<uintptr_t>(a.dst) % kSize || reinterpret_cast<uintptr_t>(a.src) % kSize ||
      a.dst_stride % kSize || a.src_stride % kSize || a.run % kSize)
    return false;
  const int64_t words = a.run / kSize;
  const Grid grid{dim3(blocks_of(words, 256, 1024), blocks_of(a.blocks, 1, kMostRows)), dim3(256)};
  launch(context, "strided_copy", copy_runs<Word>, grid, reinterpret_cast<Word*>(a.dst),
         reinterpret_cast<const Word*>(a.src), a.dst_stride / kSize, a.src_stride / kSize, a.blocks, words);
  return true;
}

void copy(ExecutionContext& context, void* dst, const void* src, int64_t bytes) {
  if (bytes <= 0 || dst == src) return;
  check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(context)), "copy");
}

void strided_copy(ExecutionContext& context, const StridedCopyArgs& a) {
  if (a.blocks <= 0 || a.run <= 0) return;
  if (a.blocks == 1 || (a.dst_stride == a.run && a.src_stride == a.run))
    return copy(context, a.dst, a.src, a.blocks * a.run);
  constexpr int64_t kMostPitch = INT32_MAX;
  if (a.dst_stride >= a.run && a.src_stride >= a.run && a.dst_stride <= kMostPitch &&
      a.src_stride <= kMostPitch) {
    const auto size = [](int64_t v) { return static_cast<size_t>(v); };
    check(cudaMemcpy2DAsync(a.dst, size(a.dst_stride), a.src, size(a.src_stride), size(a.run), size(a.blocks),
                            cudaMemcpyDefault, stream_of(context)),
          "strided_copy");
    return;
  }
  if (copy_runs_of<uint4>(context, a) || copy_runs_of<uint2>(context, a) ||
      copy_runs_of<uint32_t>(context, a) || copy_runs_of<uint16_t>(context, a))
    return;
  copy_runs_of<uint8_t>(context, a);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const CopyKernels* CopyKernels::cuda() {
  static constexpr CopyKernels table{.copy = cuda::copy, .strided_copy = cuda::strided_copy};
  return &table;
}

}  // namespace sherd
