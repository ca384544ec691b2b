// Parameters of no module: tensors of any dtype as functions see weights.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/kernels/elementwise/elementwise.h>

namespace sherd::test {

/// Gradients are of the weights' dtype, and added up from zero.
class LooseParameters : public ParameterViews {
 public:
  Parameter add(const Tensor& weights) {
    weights_.push_back(weights);
    gradients_.emplace_back();
    const auto index = static_cast<int>(weights_.size()) - 1;
    return Parameter("loose." + std::to_string(index), weights.shape(), *this, index);
  }

  /// Functions of these parameters alone are recorded there, as inside a recorded forward of their model.
  void record_on(ForwardRecorder* recorder) { recorder_ = recorder; }
  ForwardRecorder* recorder() const override { return recorder_; }

  Tensor data(int p) const override { return weights_[static_cast<size_t>(p)]; }
  Tensor grad(int p) override {
    const GradTarget to = grad_for_overwrite(p);
    if (to.beta == 0) ops::fill(to.grad.device().compute(), to.grad, 0);
    return to.grad;
  }
  GradTarget grad_for_overwrite(int p) override {
    Tensor& g = gradients_[static_cast<size_t>(p)];
    if (g.defined()) return {g, 1};
    const Tensor w = data(p);
    g = Tensor::empty(w.device(), w.shape(), w.dtype(), "test");
    return {g, 0};
  }

  Tensor shard(int) const override { throw std::logic_error("a loose parameter has no shard"); }
  Tensor model_copy(int) const override { throw std::logic_error("a loose parameter has no copy"); }
  Tensor grad_shard(int) const override { throw std::logic_error("a loose parameter has no shard"); }
  ParamRange shard_range(int) const override { throw std::logic_error("a loose parameter has no shard"); }
  DTensor dtensor(int) const override { throw std::logic_error("a loose parameter has no mesh"); }

 private:
  std::vector<Tensor> weights_, gradients_;
  ForwardRecorder* recorder_ = nullptr;
};

}  // namespace sherd::test
