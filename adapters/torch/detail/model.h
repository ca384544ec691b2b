// Sharded tree of libtorch modules: its units, the memory under the parameters, and the state that calls
// share.
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

/// A unit and the tensors of libtorch's that its parameters are. A tensor keeps one storage for good, and so
/// do all views that autograd has saved; the address in it is that of the unit's buffer while the unit is in
/// use, and none otherwise: reading it then throws an error that names the parameter.
class [[nodiscard]] UnitUse {
 public:
  struct Weight {
    Parameter parameter;
    at::Tensor tensor;
    c10::Storage memory;   // that of `tensor`, whose address sherd sets
    std::string absent;    // what reading it throws while the weights are elsewhere
    uint64_t version = 0;  // of `tensor` when the unit was unsharded
  };
  UnitUse(std::weak_ptr<Model> model, std::shared_ptr<Unit> unit, std::shared_ptr<const TorchDevice> device)
      : model_(std::move(model)), unit_(std::move(unit)), device_(std::move(device)) {}
  ~UnitUse();
  UnitUse(const UnitUse&) = delete;
  UnitUse& operator=(const UnitUse&) = delete;

  /// Takes a parameter over: drops the memory that `tensor` held; the unit provides its memory from now on.
  void add(const Parameter& parameter, const at::Tensor& tensor);
  Unit& unit() const { return *unit_; }
  /// Null once the root is gone.
  std::shared_ptr<Model> model() const { return model_.lock(); }

  /// The unit is unsharded, and its memory may be used in the order of the compute stream: until as many unbind().
  void bind();
  /// Call it before unsharding. @throws InvalidArgument naming a parameter whose memory was replaced since
  /// add().
  void require_own_memory() const;
  /// The parameters, by index, that were written in place, or given other memory, since the unit was unsharded; not
  /// through data(), whose writes libtorch does not count.
  std::vector<size_t> written() const;
  /// @throws InvalidArgument naming them, and `where`.
  void require_unwritten(const char* where) const;
  /// Of a backward. @throws InvalidArgument naming a parameter that trains in this step and has requires_grad off by now.
  void require_same_requires_grad() const;
  const std::vector<Weight>& weights() const { return weights_; }
  bool bound() const { return bound_ > 0; }
  /// Reading a parameter says so from now on.
  void root_is_gone();
  void unbind() noexcept;
  /// A gradient has come to tensor `w` in its grad(): it goes to the unit's buffer.
  void take_gradient(size_t w);

  /// Recorded calls of this step whose backward has neither ended nor been dropped.
  int due = 0;
  /// Calls in whose backward we are.
  int backwards = 0;

 private:
  void set_address(Weight& weight, void* address);

  std::weak_ptr<Model> model_;
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<const TorchDevice> device_;
  std::vector<Weight> weights_;
  int bound_ = 0;
};

/// That which has taken the parameter over; null for parameters that are in no tree that is sharded.
std::shared_ptr<const UnitUse> unit_of_parameter(const at::Tensor& parameter);

/// Gives this rank's piece of the parameter the values of `tensor`, which has all of them.
void to_shard(Stream& compute, const Parameter& parameter, const at::Tensor& tensor);
/// What an error says of weights that were written where they are not kept.
inline constexpr const char* kWriteWeights =
    "such a write is lost, or is kept by this rank alone, as the strategy has it, and what the values are "
    "now is undefined: load "
    "them again. Change weights between steps by sherd::torch::update_weights()";

/// Owned by what is attached to the tree's root.
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
  void shard(::torch::nn::Module& root, const DeviceMesh& mesh, const FullyShardOptions& options,
             const ParameterInit& init);

  /// Of a model that is sharded.
  const TorchDevice& device() const { return *device_; }
  /// What libtorch does from here on in the order of the compute stream comes behind all that sherd has queued
  /// (TorchDevice::join()).
  void join() const { device_->join(); }
  /// Changes with each step: calls of another one have no backward any more. Forgets what is due, when it has
  /// changed.
  uint64_t step();

  /// Before a forward of the root that backward may follow.
  /// @throws InvalidArgument naming all parameters that have been registered since the tree was sharded and that have a
  /// gradient that sherd does not receive, and all buffers that have other memory than sherd's.
  void require_whole(const ::torch::nn::Module& root) const;
  /// Before zero_grad() of the root. @throws InvalidArgument when gradients have come in this step and the model has
  /// neither an optimizer nor ever had one of the adapter's, or LocalShards.
  void require_user_of_gradients() const;
  /// Before a recorded forward that no other one is around. Freezes and thaws as requires_grad of the parameters says.
  /// Collective: compares it over the ranks. @throws RanksDiffer on all of them; InvalidArgument in the midst of a
  /// step, and naming parameters that were frozen when the tree was sharded.
  void follow_requires_grad();
  /// `view` is of sherd's memory: reading it once the model is gone throws `gone`.
  void lend(const at::Tensor& view, const char* gone);
  /// A parameter's gradient has come.
  void note_gradients() { gradients_of_ = runtime().step(); }
  /// There are LocalShards or an Optimizer of this model.
  void note_user_of_gradients() { used_ = true; }

  /// A function that update_weights() was given runs.
  bool updating = false;
  /// Some parameter has another compute dtype than f32.
  bool mixed() const { return mixed_; }
  const std::vector<std::shared_ptr<UnitUse>>& units() const { return units_; }

  /// The recorded forwards that run, innermost last.
  std::vector<Call*> forwards;
  /// The backward that runs.
  std::weak_ptr<Pass> pass;
  /// The run of autograd that adds to no gradient of a parameter.
  std::weak_ptr<Reading> reading;
  /// Gradients of parameters that torch::autograd::grad() returns are marked (Reading).
  bool marks_gradients = false;
  /// What sherd::torch::route() has decided.
  std::optional<Routing> routing;

 private:
  /// Parameters and buffers are on the CPU, the meta device or the rank's own.
  void require_places(const ::torch::nn::Module& root) const;
  void require_alike(Communicator& world) const;
  /// Of what has values.
  void fill_shards();
  /// Of what has none yet, one module after the other.
  void fill_shards_with(const FirstValues& values, Communicator& world);
  void take_over_buffers();
  void take_over(::torch::nn::Module& root);

  Description description_;
  std::shared_ptr<TorchDevice> device_;
  std::vector<std::shared_ptr<UnitUse>> units_;
  std::shared_ptr<UnitUse> root_unit_;
  uint64_t step_ = 0;
  std::optional<uint64_t> gradients_of_;  // the step in which gradients came last
  bool used_ = false, mixed_ = false;
  std::vector<c10::Storage> buffer_memory_;  // of each of description_.buffers(), as sherd gave it
  struct Lent {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    const char* gone;
  };
  std::vector<Lent> lent_;
};

}  // namespace sherd::torch::detail
