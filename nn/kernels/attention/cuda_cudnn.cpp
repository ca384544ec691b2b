#include "cuda_cudnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include <sherd/kernels/device/cuda/cudnn_library.h>
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/gemm/cuda_matrices.h>

namespace sherd::cuda {
namespace {

/// Plans of a queue; used by its worker alone.
struct CudnnPlans {
  std::unique_ptr<CudnnGraphs> graphs;  // null: cuDNN does not start
  std::map<CudnnShape, std::optional<CudnnPlan>> plans;

  const CudnnPlan* find(const CudnnShape& shape) {
    auto [at, fresh] = plans.try_emplace(shape);
    if (fresh) at->second = graphs->plan(shape);
    if (fresh && !at->second) cudaGetLastError();  // no error to be found by the next launch
    return at->second ? &*at->second : nullptr;
  }
};

std::shared_ptr<CudnnPlans> start(const CudaQueue& queue) {
  auto plans = std::make_shared<CudnnPlans>();
  try {
    plans->graphs = make_cudnn_graphs(queue.stream());
  } catch (const CudaError& e) {
    if (queue.chip().attention == AttentionMethod::cudnn) throw;
    cudaGetLastError();
    fmt::print(stderr, "sherd: warning: GPU {}: {}; sherd's attention kernels are used\n",
               queue.chip().ordinal, e.what());
  }
  return plans;
}

CudnnPlans& plans_of(CudaQueue& queue) {
  std::shared_ptr<void>& slot = queue.attention_plans();
  if (!slot) slot = start(queue);
  return *static_cast<CudnnPlans*>(slot.get());
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool takes(const AttentionArgs& a) {
  return a.qkv.dtype == DType::bf16 && a.head_dim % 8 == 0 && a.head_dim <= 128 && a.window == 0 &&
         !a.starts && (!a.max_logits || cudnn_library().version >= kCudnnWithMaxima) && aligned(a.qkv.data) &&
         aligned(a.out.data) && aligned(a.lse) && aligned(a.dout.data) && aligned(a.dqkv.data);
}

/// Scratch memory of a call; max and sum are as lse.
struct CudnnScratch {
  char* workspace = nullptr;
  float *max = nullptr, *sum = nullptr;
};

/// Items of the batch from `item` on, and key heads from `kv_head` on.
struct Part {
  int64_t item = 0, kv_head = 0;
  const CudnnPlan* plan = nullptr;
};

/// A call in parts that cuDNN computes one after the other.
class Cut {
 public:
  Cut(CudnnPlans& plans, const AttentionArgs& a, bool backward, int64_t most_workspace)
      : plans_(plans),
        a_(a),
        shape_{backward,   a.max_logits != nullptr, a.batch,   a.seq, a.kv_heads,
               a.kv_heads, a.heads / a.kv_heads,    a.head_dim},
        most_(most_workspace) {}

  /// The parts; none where cuDNN cannot compute them.
  std::vector<Part> parts() {
    const std::optional<CudnnShape> most = largest_part();
    if (!most) return {};
    std::vector<Part> parts;
    for (int64_t item = 0; item < a_.batch; item += most->batch)
      for (int64_t head = 0; head < a_.kv_heads; head += most->kv_heads) {
        CudnnShape shape = *most;
        shape.batch = std::min(shape.batch, a_.batch - item);
        shape.kv_heads = std::min(shape.kv_heads, a_.kv_heads - head);
        const CudnnPlan* const plan = plans_.find(shape);
        if (!plan || !aligned(a_.lse + first_row(item, head))) return {};
        parts.push_back({item, head, plan});
      }
    return parts;
  }

  CudnnMemory memory(const Part& p, const CudnnScratch& scratch) const {
    const int64_t d = a_.head_dim, out_row = a_.heads * d, in_row = out_row + 2 * a_.kv_heads * d;
    const auto in = [&](const Ref& packed, int64_t head) -> void* {
      return packed.data ? packed.as<uint16_t>() + p.item * a_.seq * in_row + head * d : nullptr;
    };
    const auto out = [&](const Ref& rows) -> void* {
      return rows.data ? rows.as<uint16_t>() + p.item * a_.seq * out_row + p.kv_head * shape_.group * d
                       : nullptr;
    };
    const int64_t q = p.kv_head * shape_.group, k = a_.heads + p.kv_head, v = k + a_.kv_heads;
    const int64_t row = first_row(p.item, p.kv_head);
    CudnnMemory m{in(a_.qkv, q), in(a_.qkv, k),  in(a_.qkv, v),  out(a_.out),   a_.lse + row,
                  out(a_.dout),  in(a_.dqkv, q), in(a_.dqkv, k), in(a_.dqkv, v)};
    if (shape_.maxima) {
      m.max = scratch.max + row;
      m.sum = scratch.sum + row;
    }
    return m;
  }

 private:
  /// Returns the place in lse of a key head's first row.
  int64_t first_row(int64_t item, int64_t kv_head) const {
    return (item * a_.heads + kv_head * shape_.group) * a_.seq;
  }

  /// A part of the fewest whose workspaces are within the limit.
  std::optional<CudnnShape> largest_part() {
    CudnnShape part = shape_;
    for (;;) {
      const CudnnPlan* const plan = plans_.find(part);
      if (!plan) return {};
      if (plan->workspace_bytes <= most_) return part;
      const bool items = part.batch > 1;
      int64_t& count = items ? part.batch : part.kv_heads;
      const int64_t all = items ? a_.batch : a_.kv_heads;
      if (count == 1) return {};
      count = std::clamp<int64_t>(count * most_ / plan->workspace_bytes, 1, count - 1);
      const int64_t parts = (all + count - 1) / count;
      count = (all + parts - 1) / parts;  // as many parts, of nearly one size
    }
  }

  CudnnPlans& plans_;
  const AttentionArgs& a_;
  const CudnnShape shape_;
  const int64_t most_;
};

bool run(ExecutionContext& context, const AttentionArgs& a, bool backward, int64_t most_workspace) {
  CudaQueue& queue = queue_of(context);
  if (queue.chip().attention == AttentionMethod::own || !takes(a)) return false;
  CudnnPlans& plans = plans_of(queue);
  if (!plans.graphs) return false;
  Cut cut(plans, a, backward, most_workspace);
  const std::vector<Part> parts = cut.parts();
  if (parts.empty()) return false;
  int64_t bytes = 0;
  for (const Part& p : parts) bytes = std::max(bytes, p.plan->workspace_bytes);
  const int64_t rows = a.max_logits ? a.batch * a.heads * a.seq : 0;
  const CudnnScratch scratch = carve(context, [&](Carver& carver) {
    return CudnnScratch{carver.array<char>(bytes), carver.array<float>(rows), carver.array<float>(rows)};
  });
  for (const Part& p : parts) p.plan->run(cut.memory(p, scratch), scratch.workspace);
  if (a.max_logits) finish_maxima(context, a, scratch.max, scratch.sum);
  return true;
}

}  // namespace

bool cudnn_forward(ExecutionContext& context, const AttentionArgs& a, int64_t most_workspace) {
  return run(context, a, false, most_workspace);
}

bool cudnn_backward(ExecutionContext& context, const AttentionArgs& a, int64_t most_workspace) {
  return run(context, a, true, most_workspace);
}

}  // namespace sherd::cuda
