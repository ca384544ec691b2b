// Attention by cuDNN. Private to attention's CUDA kernels.
//
// cuDNN computes calls in bf16 with head_dim a multiple of 8 up to 128, rows and lse at multiples of 16 bytes, where
// DeviceOptions::attention allows it and cuDNN has a plan for the shape; max_logits since 9.14. Windows and
// documents in a row are left to the own kernels, as the rest. The own kernels compute the
// others. lse is the same number in both, so that one pass may be cuDNN's and the other one not. cuDNN multiplies masked
// probabilities, which are 0: a non-finite key, value or gradient reaches rows that the mask hides it from.
//
// Backward is deterministic. On compute capability 9.0 cuDNN keeps seq x seq values of every head for that. A call is cut
// by items of the batch, and one item by key heads, so that the workspace of a part has a limit. Parts share nothing, so the bits do not
// depend on the cut.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <sherd/nn/kernels/attention/attention.h>

namespace sherd::cuda {

/// Most bytes of a part's workspace, which is scratch of the stream.
inline constexpr int64_t kCudnnWorkspace = int64_t{1} << 30;
/// The oldest version with maxima of score rows.
inline constexpr int64_t kCudnnWithMaxima = 91400;

/// Issues the call by cuDNN. False: nothing was issued, the own kernels compute it.
/// @throws CudaError when cuDNN fails in a call that it has a plan for.
bool cudnn_forward(ExecutionContext&, const AttentionArgs&, int64_t most_workspace = kCudnnWorkspace);
bool cudnn_backward(ExecutionContext&, const AttentionArgs&, int64_t most_workspace = kCudnnWorkspace);

/// Items of a batch and key heads, each with its `group` query heads, of packed rows that have all_kv_heads of them.
/// One item where kv_heads is below all_kv_heads.
struct CudnnShape {
  bool backward = false;
  bool maxima = false;  // forward: max and sum instead of lse
  int64_t batch = 0, seq = 0, kv_heads = 0, all_kv_heads = 0, group = 0, head_dim = 0;
  auto operator<=>(const CudnnShape&) const = default;
};

/// First elements of a part. Rows are as in AttentionArgs; lse is [batch, kv_heads * group, seq].
struct CudnnMemory {
  void *q, *k, *v, *out, *lse;
  void *dout, *dq, *dk, *dv;  // backward
  /// Largest score of a row, and the sum of exp(score - max). Shaped as lse; null without CudnnShape::maxima.
  void *max = nullptr, *sum = nullptr;
};

/// lse = max + log(sum) of all rows of the call, and raises max_logits.
void finish_maxima(ExecutionContext&, const AttentionArgs&, const float* max, const float* sum);

struct CudnnPlan {
  int64_t workspace_bytes = 0;
  /// Issues the plan on the queue's stream. @throws CudaError.
  std::function<void(const CudnnMemory&, void* workspace)> run;
};

/// cuDNN's graphs on a queue; they go before its stream. Used by the queue's worker alone.
class CudnnGraphs {
 public:
  virtual ~CudnnGraphs() = default;
  /// Builds a plan, which loads kernels; nothing where cuDNN has none for the shape. Plans go before their graphs.
  virtual std::optional<CudnnPlan> plan(const CudnnShape& shape) = 0;
};

/// Makes graphs of the library in cudnn_library(). `stream` is a cudaStream_t. @throws CudaError.
std::unique_ptr<CudnnGraphs> make_cudnn_graphs(void* stream);

}  // namespace sherd::cuda
