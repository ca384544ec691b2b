// Interface of a parameter to the group whose buffers store it.
#pragma once

#include <sherd/dtensor/dtensor.h>

namespace sherd {

/// Where a gradient goes, for a writer that computes `beta` times what is there plus its own.
struct GradTarget {
  Tensor grad;     // the whole gradient, f32
  float beta = 1;  // 0: nothing has been added yet, and the memory holds anything, NaN as well
};

/// Views of parameter number `p` of a group; the functions of the same names in Parameter say what they are.
/// Parameter knows the group by these alone, and the group knows Parameter.
class ParameterViews {
 public:
  virtual bool frozen(int /*p*/) const { return false; }
  virtual Tensor data(int p) const = 0;
  virtual Tensor grad(int p) = 0;
  virtual GradTarget grad_for_overwrite(int p) = 0;
  virtual Tensor shard(int p) const = 0;
  virtual Tensor model_copy(int p) const = 0;
  virtual Tensor grad_shard(int p) const = 0;
  virtual ParamRange shard_range(int p) const = 0;
  virtual DTensor dtensor(int p) const = 0;

 protected:
  ~ParameterViews() = default;
};

}  // namespace sherd
