// Down-scaling of attention heads whose logits have grown too large. ops.h says what holds for all
// operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// QK-clip (Kimi K2, arXiv 2507.20534). With the largest attention logit S_h of head h:
///   gamma_h = tau / S_h where S_h is finite and larger than tau, else 1 (and 1 for all when skip[0] is not
///   0).
/// Query heads h of which heads / kv_heads share key head g (h / (heads / kv_heads) = g):
///   key[g] = sqrt(the least gamma of its query heads); query[h] = gamma_h / key[g],
/// so that the logits of head h are scaled by gamma_h.
struct QkClipArgs {
  const float* maxima = nullptr;
  int64_t heads = 0, kv_heads = 0;
  float tau = 0;
  float *query = nullptr, *key = nullptr;
  const int64_t* skip = nullptr;  // may be null
};

/// A piece that is multiplied by a number in device memory of its own.
struct HeadScaleSegment {
  void* x = nullptr;  // weights of the pass's form
  int64_t count = 0;
  const float* factor = nullptr;
  uint16_t* low = nullptr;  // low halves of x where the form is split
  Noise noise = {};         // read where x is rounded; another key than the update's
};

struct HeadScaleArgs {
  std::vector<HeadScaleSegment> segments;
  Master form = Master::f32;
};

struct QkClipKernels {
  static constexpr const char* kName = "qk_clip";
  static const QkClipKernels* reference();
  static const QkClipKernels* cpu();
  static const QkClipKernels* cuda();

  void (*qk_clip_factors)(ExecutionContext&, const QkClipArgs&);
  void (*scale_heads)(ExecutionContext&, const HeadScaleArgs&);
};

namespace ops {

/// query f32 [heads] and key f32 [kv_heads] from maxima f32 [heads]; heads is a multiple of kv_heads; skip
/// i64 [1], may be undefined.
void qk_clip_factors(Stream& s, const Tensor& query, const Tensor& key, const Tensor& maxima, double tau,
                     const Tensor& skip = {});
/// x *= factor[0] of each segment; a factor of exactly 1 leaves it untouched.
/// @throws ShapeMismatch naming every segment that lacks a pointer.
void scale_heads(Stream& s, std::span<const HeadScaleSegment> segments, Master form = Master::f32);

}  // namespace ops
}  // namespace sherd
