#include <sherd/kernels/device/cuda/block_reduce.h>

#include "cuda_attention.h"
#include "cuda_cudnn.h"

namespace sherd::cuda {
namespace {

constexpr int kMaximaThreads = 256;

/// A block for each head of each item.
__global__ void __launch_bounds__(kMaximaThreads)
    finish_rows(Packing p, const float* max, const float* sum, float* lse, float* max_logits) {
  const int64_t first = int64_t{blockIdx.x} * p.seq;
  const int64_t counted = first + p.counted(static_cast<int>(blockIdx.x));
  float most = -INFINITY;
  for (int64_t i = first + threadIdx.x; i < first + p.seq; i += kMaximaThreads) {
    lse[i] = max[i] + logf(sum[i]);
    if (i < counted) most = fmaxf(most, max[i]);
  }
  most = group_reduce<kMaximaThreads>(most, Max{});
  if (threadIdx.x == 0) raise_max_logit(max_logits, p, static_cast<int>(blockIdx.x), most);
}

}  // namespace

void finish_maxima(ExecutionContext& context, const AttentionArgs& a, const float* max, const float* sum) {
  launch(context, "attention_forward", finish_rows,
         Grid{dim3(static_cast<unsigned>(a.batch * a.heads)), dim3(kMaximaThreads)},
         Packing(a, __nv_bfloat16{}), max, sum, a.lse, a.max_logits);
}

}  // namespace sherd::cuda
