// State of torch::optim optimizers in sherd's memory: an update rule for checkpoints.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/optim/update_rule.h>
#include <sherd/torch/detail/torch_device.h>
#include <sherd/torch/optimizer_state.h>

namespace sherd::torch::detail {

/// A parameter and this rank's shard of it, as LocalShards gives it to optimizers.
using NamedShard = std::pair<Parameter, at::Tensor>;

/// Update rule of all torch::optim optimizers of a model. Their state tensors are views of sherd's memory,
/// from construction or from the update that made them. Counts are on the device. The next update starts from
/// the counts that a checkpoint or the program has written there.
class [[nodiscard]] KeptState final : public UpdateRule {
 public:
  /// Its name in routes.
  static constexpr Algorithm kName{"torch_optim"};
  /// Returns a factory of the rule. `shards` are all trainable parameters; optimizers and device outlive the
  /// last run(). @throws InvalidArgument naming all shards that are in no optimizer or in several, and
  /// counting tensors that are not shards.
  static UpdateRuleFactory factory(std::vector<KeptOptimizer> optimizers, std::vector<NamedShard> shards,
                                   std::shared_ptr<TorchDevice> device);
  ~KeptState() override;

  /// Scope in which step() calls `update`, which steps the optimizers.
  class [[nodiscard]] Run {
   public:
    Run(KeptState& state, std::function<void()> update) : state_(state) {
      state_.update_ = std::move(update);
    }
    ~Run() { state_.update_ = {}; }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    KeptState& state_;
  };
  /// Waits for the device. @throws InvalidArgument outside of a Run, and when an optimizer has parameters or
  /// state that are newer than the rule.
  void step(Stream& compute, double lr, const Tensor& skip) override;
  /// Returns whether the last step() updated.
  bool stepped() const { return stepped_; }
  std::vector<StateTensor> state() const override;
  std::vector<StateCounter> counters() const override;

 private:
  struct Field {
    std::string key;
    Tensor memory;
    at::Tensor view;
  };
  /// State of one parameter.
  struct Slot {
    Parameter parameter;
    at::Tensor shard;
    size_t optimizer = 0, group = 0;
    bool begins_with_zeros = false;
    std::vector<Field> fields = {};
  };
  struct Source {
    std::vector<KeptOptimizer> optimizers;
    std::vector<Slot> slots;
    std::shared_ptr<TorchDevice> torch_device;
  };
  KeptState(Device& device, Source source);
  static std::vector<Slot> slots_of(const std::vector<KeptOptimizer>& optimizers,
                                    const std::vector<NamedShard>& shards);
  ::torch::optim::OptimizerParamState* state_of(const Slot& slot) const;
  StateFields fields_of(const Slot& slot, ::torch::optim::OptimizerParamState& state) const;
  ::torch::optim::OptimizerParamState& make_state(const Slot& slot);
  /// Moves the tensors of torch's state into sherd's memory.
  void adopt(const Slot& slot, ::torch::optim::OptimizerParamState& state) const;
  /// Sets torch's state by sherd's counts.
  void restore(const std::vector<float>& counts);

  Device& device_;
  Source source_;
  Tensor counts_;  // f32 [slots]
  std::function<void()> update_;
  bool stepped_ = false;
};

}  // namespace sherd::torch::detail
