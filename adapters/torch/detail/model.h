// Sharded tree of libtorch modules: units, memory of the parameters, and state of the calls.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/routing.h>
#include <sherd/torch/detail/description.h>
#include <sherd/torch/detail/first_values.h>
#include <sherd/torch/detail/torch_device.h>

namespace sherd::torch::detail {

class Call;
class Model;
class Pass;
class Reading;

/// A unit and libtorch's tensors of its parameters. A tensor keeps one storage for good; views that autograd
/// saved keep it too. While the unit is in use, the storage's address is that of the unit's buffer. Otherwise
/// it has none, and a read throws an error that names the parameter.
class [[nodiscard]] UnitUse {
 public:
  struct Weight {
    Parameter parameter;
    at::Tensor tensor;
    c10::Storage memory;   // storage of `tensor`; sherd sets its address
    std::string absent;    // error of a read while the weights are sharded
    uint64_t version = 0;  // version of `tensor` when the unit was unsharded
  };
  UnitUse(std::weak_ptr<Model> model, std::shared_ptr<Unit> unit, std::shared_ptr<const TorchDevice> device)
      : model_(std::move(model)), unit_(std::move(unit)), device_(std::move(device)) {}
  ~UnitUse();
  UnitUse(const UnitUse&) = delete;
  UnitUse& operator=(const UnitUse&) = delete;

  /// Takes a parameter over: drops the memory of `tensor`. The unit provides its memory from now on.
  void add(const Parameter& parameter, const at::Tensor& tensor);
  Unit& unit() const { return *unit_; }
  /// Returns the model; null after the root's destruction.
  std::shared_ptr<Model> model() const { return model_.lock(); }

  /// Binds the tensors to the unit's unsharded memory, for use in the order of the compute stream. Ends with
  /// as many unbind().
  void bind();
  /// Checks the tensors' memory; call it before unsharding. @throws InvalidArgument naming a parameter whose
  /// memory was replaced since add().
  void require_own_memory() const;
  /// Returns indices of parameters that were written in place, or were given other memory, since the unit was
  /// unsharded. Writes through data() are not detected: libtorch does not count them.
  std::vector<size_t> written() const;
  /// @throws InvalidArgument naming the written() parameters, and `where`.
  void require_unwritten(const char* where) const;
  /// Checks the parameters before a backward. @throws InvalidArgument naming a parameter that trains in this
  /// step and has requires_grad off now.
  void require_same_requires_grad() const;
  const std::vector<Weight>& weights() const { return weights_; }
  bool bound() const { return bound_ > 0; }
  /// Makes each later read of a parameter an error that says so.
  void root_is_gone();
  void unbind() noexcept;
  /// Adds the gradient in grad() of tensor `w` to the unit's buffer.
  void take_gradient(size_t w);

  /// Recorded calls of this step whose backward is due or runs.
  int due = 0;
  /// Calls whose backward runs.
  int backwards = 0;

 private:
  void set_address(Weight& weight, void* address);

  std::weak_ptr<Model> model_;
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<const TorchDevice> device_;
  std::vector<Weight> weights_;
  int bound_ = 0;
};

/// Returns the unit that took the parameter over; null for parameters outside of sharded trees.
std::shared_ptr<const UnitUse> unit_of_parameter(const at::Tensor& parameter);

/// Copies this rank's piece out of `tensor`, which has all values of the parameter.
void to_shard(Stream& compute, const Parameter& parameter, const at::Tensor& tensor);
/// @throws InvalidArgument for a parameter whose shard is not fp32 (FullyShardOptions::master), naming it and `function`.
void require_f32_masters(const Parameter& parameter, const char* function);
/// Remedy in errors about weights written at the wrong place.
inline constexpr const char* kWriteWeights =
    "such a write is lost, or is kept by this rank alone, as the strategy has it, and what the values are "
    "now is undefined: load "
    "them again. Change weights between steps by sherd::torch::update_weights()";

/// A sharded tree. The Attached of its root owns it.
class Model : public std::enable_shared_from_this<Model> {
 public:
  explicit Model(::torch::nn::Module& root) : description_(root) {}
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const Description& description() const { return description_; }
  ModuleBase& root() const { return description_.root(); }
  bool sharded() const { return root_unit_ != nullptr; }
  ShardRuntime& runtime() const { return runtime_of(root()); }
  UnitUse& root_unit() const { return *root_unit_; }
  void shard(::torch::nn::Module& root, const Wrap& wrap, const ParameterInit& init);

  /// Returns the device of a sharded model.
  const TorchDevice& device() const { return *device_; }
  /// Orders this thread's next operations of libtorch on the compute stream after all that sherd has queued
  /// there (TorchDevice::join()).
  void join() const { device_->join(); }
  /// Returns the step's id. Calls of an earlier step have no backward any more. Drops due backwards when the
  /// step has changed.
  uint64_t step();

  /// Checks the tree before a forward of the root that backward may follow.
  /// @throws InvalidArgument naming all buffers whose memory is not sherd's, and all parameters that were
  /// registered after sharding and have a gradient: sherd does not receive it.
  void require_whole(const ::torch::nn::Module& root) const;
  /// Checks for an optimizer before zero_grad() of the root. @throws InvalidArgument when this step has
  /// gradients and the model has never had an optimizer, the adapter's Optimizer or LocalShards.
  void require_user_of_gradients() const;
  /// Freezes and thaws parameters by their requires_grad. Before a recorded outermost forward. Collective:
  /// compares requires_grad over the ranks. @throws RanksDiffer on all of them; InvalidArgument in a running
  /// step, and naming parameters that were frozen when the tree was sharded.
  void follow_requires_grad();
  /// Registers `view`, which is of sherd's memory: a read after the model's destruction throws `gone`.
  void lend(const at::Tensor& view, const char* gone);
  /// Notes that this step has a gradient.
  void note_gradients() { gradients_of_ = runtime().step(); }
  /// Notes that this model has LocalShards or an Optimizer.
  void note_user_of_gradients() { used_ = true; }

  /// true while the function given to update_weights() runs
  bool updating = false;
  /// Returns whether a parameter has a compute dtype other than f32.
  bool mixed() const { return mixed_; }
  const std::vector<std::shared_ptr<UnitUse>>& units() const { return units_; }

  /// Recorded forwards that run, innermost last.
  std::vector<Call*> forwards;
  /// Backward that runs.
  std::weak_ptr<Pass> pass;
  /// Run of autograd that adds to no parameter's gradient.
  std::weak_ptr<Reading> reading;
  /// True once gradients of parameters that torch::autograd::grad() returns are marked (Reading).
  bool marks_gradients = false;
  /// Decision of sherd::torch::route().
  std::optional<Routing> routing;

 private:
  /// @throws InvalidArgument unless parameters and buffers are on the CPU, the meta device or the rank's own.
  void require_places(const ::torch::nn::Module& root) const;
  void require_alike(Communicator& world) const;
  /// Fills the shards of parameters that have values.
  void fill_shards();
  /// Fills the shards of parameters without values, one module after the other.
  void fill_shards_with(const FirstValues& values, Communicator& world);
  void take_over_buffers();
  void take_over(::torch::nn::Module& root);

  Description description_;
  std::shared_ptr<TorchDevice> device_;
  std::vector<std::shared_ptr<UnitUse>> units_;
  std::shared_ptr<UnitUse> root_unit_;
  uint64_t step_ = 0;
  std::optional<uint64_t> gradients_of_;  // the latest step with gradients
  bool used_ = false, mixed_ = false;
  std::vector<c10::Storage> buffer_memory_;  // of each of description_.buffers(), as sherd set it
  struct Lent {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    const char* gone;
  };
  std::vector<Lent> lent_;
};

}  // namespace sherd::torch::detail
