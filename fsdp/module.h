// The base of a model's modules: names, children, and calls that carry a unit's hooks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>

namespace sherd {

class Unit;
class ShardRuntime;
struct FullyShardOptions;
struct Wrap;

/// A piece of a model with a hand-written backward. Derived classes describe parameters and children in their
/// constructor and override forward and backward; everybody else *calls* modules with operator() and
/// run_backward(), which unshard and reduce around them when the module was wrapped by fully_shard().
///
/// Registered children and parameters are kept by address resp. handle: modules do not move once a parent has
/// registered them. A module that is destroyed leaves its parent's list; parts that outlive a sharded root
/// have no weights any more, and calls of wrapped ones throw. One rank's thread uses a module.
///
/// An exception that ends a forward or backward passes through; in training, reset_step() then drops what the
/// step has left behind, before the next one.
class Module {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Queues the computation on the device's compute stream and returns its (pending) result. Called inside
  /// the backward of a unit it computes again what backward needs, for a backward that is due already: the
  /// whole parameters are then kept for it, and no further backward becomes due.
  Tensor operator()(const Tensor& x);
  /// Gradient with respect to the input of the latest call whose backward is still due.
  Tensor run_backward(const Tensor& dy);

  /// Every parameter below this module once (tied ones under their first name), depth first: own parameters
  /// in order of registration, then children.
  std::vector<std::pair<std::string, Parameter>> named_parameters() const;
  /// {other name, first name} of every place of a tied parameter but its first, in the order of
  /// named_parameters().
  std::vector<std::pair<std::string, std::string>> tied_names() const;
  /// Calls f(name, module) for this module (name "") and everything below it.
  void visit(const std::function<void(const std::string&, Module&)>& f, const std::string& prefix = "");

  /// In evaluation mode no activations need to be kept and no backward may follow. Set on the root.
  void set_training(bool on);
  bool training() const { return training_; }
  /// Parameters registered by this module itself, in order.
  std::vector<Parameter> own_parameters() const;
  /// What fully_shard() noted here, or null.
  const Wrap* wrap() const { return wrap_.get(); }
  bool is_root() const { return parent_ == nullptr; }
  /// The unit this module was wrapped in, or null.
  const std::shared_ptr<Unit>& unit() const { return unit_; }

 protected:
  virtual Tensor forward(const Tensor& x) = 0;
  /// Adds parameter gradients into Parameter::grad() (or grad_for_overwrite()) and returns the input's gradient
  /// (undefined if none).
  virtual Tensor backward(const Tensor& dy) = 0;
  /// Forgets what forwards kept for backwards that will not come (reset_step()).
  virtual void drop_activations() {}

  /// Names of parameters and children become parts of full names, which checkpoints hold.
  /// @throws InvalidArgument for a name that is empty, not UTF-8, or has control characters, or is there
  /// twice.
  Parameter param(std::string name, Shape shape, Init init);
  /// Registers a parameter that another module made: one tensor, one gradient, two places.
  Parameter tie(std::string name, const Parameter& other);
  /// Registers a child; `module` must outlive this module's use.
  void child(std::string name, Module& module);

 private:
  friend class ShardRuntime;
  friend void fully_shard(Module& module, const DeviceMesh& mesh, const FullyShardOptions& options);
  friend ShardRuntime& runtime_of(const Module& root);
  friend void reset_step(Module& root);
  friend void assign_names(Module& root);
  std::vector<std::pair<std::string, Parameter>> parameters_;
  std::vector<std::pair<std::string, Module*>> children_;
  Module* parent_ = nullptr;
  bool training_ = true;
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Wrap> wrap_;             // noted by fully_shard() until the root's call
  std::shared_ptr<ShardRuntime> runtime_;  // root only
};

/// Gives every parameter its full name; later registrations of a tied parameter keep the first one.
void assign_names(Module& root);

}  // namespace sherd
