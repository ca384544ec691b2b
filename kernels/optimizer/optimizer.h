// The passes of AdamW, and of averages of weights. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// Bias correction of AdamW after a number of updates: step_size = lr/bias1, root = sqrt(bias2), with bias_i
/// = 1 - beta_i^step in double, rounded to f32.
struct AdamWBias {
  float step_size = 0, root = 1;
};

/// beta^step is multiplied together by repeated squaring, from the lowest bit of `step` on, so that every
/// device has the same bits.
AdamWBias adamw_bias(double lr, double beta1, double beta2, int64_t step);

/// For each of `count` counters: ++steps, and its bias as adamw_bias() says.
///
/// `skip`, here and in the other passes of a step: a number in device memory, the same on every rank, or
/// null. Other than 0, the pass leaves everything as it was: the step's gradients are not finite somewhere.
struct AdamWCountArgs {
  int64_t count = 0;
  float* steps = nullptr;       // whole numbers; they stay at 2^24, where a bias correction is long 1
  AdamWBias* biases = nullptr;  // may be null
  double lr = 0, beta1 = 0, beta2 = 0;
  const int64_t* skip = nullptr;
};

/// A piece of an AdamW pass.
struct AdamWSegment {
  void* w = nullptr;  // of the pass's form
  void* m = nullptr;  // of the pass's dtype of states
  void* v = nullptr;
  const void* g = nullptr;  // of the pass's dtype of gradients
  /// Receives w, rounded once to the pass's dtype of copies; may be null, and is unless the form is f32.
  void* copy = nullptr;
  int64_t count = 0;
  double weight_decay = 0;
  /// Index of its bias correction among the pass's.
  int64_t bias = 0;
  /// Low halves of w where the form is split.
  uint16_t* low = nullptr;
  /// Read where a form of the pass is rounded.
  Noise noise = {};
};

/// Decoupled AdamW (Loshchilov & Hutter 2019) with PyTorch's order of operations, per element:
///   w *= 1 - lr*weight_decay; m += (1-beta1)*(g-m); v = beta2*v + (1-beta2)*g*g;
///   w -= step_size * m / (sqrt(v)/root + eps).
/// m, v and w are rounded as they are stored (rest.h); the update of w has m and v before that. copy_dtype (f32, bf16 or f16) is that of
/// the segments' copies. Without `biases` (device memory) `bias`
/// holds for all. Gradients count times *factor (device memory; null: 1), each product rounded to fp32.
struct AdamWArgs {
  std::vector<AdamWSegment> segments;
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0;
  DType copy_dtype = DType::f32;
  const AdamWBias* biases = nullptr;
  AdamWBias bias{};
  const int64_t* skip = nullptr;
  const float* factor = nullptr;
  RestForms forms = {};
};

/// A piece of a pass over averages of weights.
struct AverageSegment {
  void* average = nullptr;  // of the pass's dtype of states
  void* w = nullptr;        // of the pass's form; read alone
  int64_t count = 0;
  uint16_t* low = nullptr;  // low halves of w where the form is split
  Noise noise = {};         // read where the average is rounded
};

/// average += rate * (w - average), as PyTorch's torch.optim.swa_utils.get_ema_multi_avg_fn() with rate = 1 - decay; rounded as it is
/// stored (rest.h).
struct AverageArgs {
  std::vector<AverageSegment> segments;
  float rate = 0;
  const int64_t* skip = nullptr;
  RestForms forms = {};
};

Work work_of(const Device& device, const AdamWArgs& a);
Work work_of(const Device& device, const AverageArgs& a);

struct OptimizerKernels {
  static constexpr const char* kName = "optimizer";
  static const OptimizerKernels* reference();
  static const OptimizerKernels* cpu();
  static const OptimizerKernels* cuda();

  void (*adamw_count)(ExecutionContext&, const AdamWCountArgs&);
  void (*adamw)(ExecutionContext&, const AdamWArgs&);
  void (*average)(ExecutionContext&, const AverageArgs&);
};

namespace ops {

struct AdamWStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  /// Counted from 1.
  int64_t step = 1;
};
/// All f32 of one element count; copy (f32, bf16 or f16; may be undefined) receives the new w in the same
/// pass.
void adamw(Stream& s, const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& g,
           const AdamWStep& step, const Tensor& copy = {});

/// AdamW over many parameters, where the device alone knows whether a step is taken: skip (i64 [1], may be
/// undefined) is read on the stream.
struct AdamWRates {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};
/// Counts a step of each parameter (steps f32 [n], whole numbers) and works out its bias corrections for
/// adamw(): biases f32 [n, 2]; undefined: it counts alone.
void adamw_count(Stream& s, const Tensor& steps, const Tensor& biases, const AdamWRates& rates,
                 const Tensor& skip = {});
/// One pass over all segments, AdamWSegment::bias being a row of biases; copies are of `copy_dtype`. Gradients count times
/// `factor` (f32 [1]; undefined: 1), with the bits of ops::scale_by() before.
/// @throws ShapeMismatch naming every segment that lacks a pointer or names a row that is not there.
void adamw(Stream& s, std::span<const AdamWSegment> segments, const AdamWRates& rates, const Tensor& biases,
           DType copy_dtype = DType::f32, const Tensor& skip = {}, const Tensor& factor = {},
           const RestForms& forms = {});

/// One pass over all segments: average = decay * average + (1 - decay) * w; see AverageArgs. decay lies in [0, 1).
/// @throws ShapeMismatch naming every segment that lacks a pointer.
void average(Stream& s, std::span<const AverageSegment> segments, double decay, const Tensor& skip = {},
             const RestForms& forms = {});

}  // namespace ops
}  // namespace sherd
