// Interface of a parameter to the group whose buffers store it.
#pragma once

#include <sherd/dtensor/dtensor.h>
#include <sherd/fsdp/recorder.h>

namespace sherd {

/// Gradient to write, for a writer that computes `beta` times its present value plus its own.
struct GradTarget {
  Tensor grad;     // the unreduced gradient, f32
  float beta = 1;  // 0: nothing was added yet; the memory is uninitialized and may hold NaN
};

/// Views of parameter `p` of a group; Parameter's functions of the same names document them. Parameter
/// depends on this interface alone, and the group depends on Parameter.
class ParameterViews {
 public:
  virtual bool frozen(int /*p*/) const { return false; }
  virtual ForwardRecorder* recorder() const { return nullptr; }
  virtual Tensor data(int p) const = 0;
  virtual Tensor grad(int p) = 0;
  virtual GradTarget grad_for_overwrite(int p) = 0;
  virtual Tensor shard(int p) const = 0;
  virtual Tensor shard_low(int) const { return {}; }
  virtual Tensor model_copy(int p) const = 0;
  virtual Tensor grad_shard(int p) const = 0;
  virtual ParamRange shard_range(int p) const = 0;
  virtual DTensor dtensor(int p) const = 0;

 protected:
  ~ParameterViews() = default;
};

}  // namespace sherd
