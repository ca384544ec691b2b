// Base of every module: names, parameters, children, a unit.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/buffer.h>
#include <sherd/fsdp/parameter.h>

namespace sherd {

class Unit;
class ShardRuntime;
struct Wrap;

/// Module tree of a model. It has no forward: nn::Module adds one, which a tape records. Clients with module
/// systems of their own derive from it, too.
///
/// Registered children and parameters are kept by address resp. handle, so modules can be neither copied nor
/// moved. A std::vector of modules can be made with its final size only; the compiler refuses to let it grow.
/// ModuleList (module_list.h), std::deque and vectors of std::unique_ptr can grow. A destroyed module leaves
/// its parent's list. Modules that outlive a sharded root have no weights, and calls of wrapped ones throw.
/// One rank's thread uses a module.
class ModuleBase {
 public:
  ModuleBase() = default;
  virtual ~ModuleBase();
  ModuleBase(const ModuleBase&) = delete;
  ModuleBase& operator=(const ModuleBase&) = delete;

  /// Returns every parameter below this module once (tied ones under their first name), depth first: own
  /// parameters in order of registration, then children.
  std::vector<std::pair<std::string, Parameter>> named_parameters() const;
  /// Returns {other name, first name} of every place of a tied parameter except its first, in the order of
  /// named_parameters().
  std::vector<std::pair<std::string, std::string>> tied_names() const;
  /// Returns the same for buffers.
  std::vector<std::pair<std::string, std::string>> tied_buffer_names() const;
  /// Returns every buffer below this module once (tied ones under their first name), depth first, persistent
  /// or not.
  std::vector<std::pair<std::string, Buffer>> named_buffers() const;
  /// Calls f(name, module) for this module (name "") and everything below it.
  void visit(const std::function<void(const std::string&, ModuleBase&)>& f, const std::string& prefix = "");

  /// Sets training or evaluation mode, on the root. In evaluation mode no activations are saved and no
  /// backward may follow.
  void set_training(bool on);
  bool training() const { return training_; }
  /// Returns the parameters that this module itself registered, in order.
  std::vector<Parameter> own_parameters() const;
  /// Returns the record of fully_shard() at this module, or null.
  const Wrap* wrap() const { return wrap_.get(); }
  bool is_root() const { return parent_ == nullptr; }
  /// Returns the unit in which this module was wrapped, or null.
  const std::shared_ptr<Unit>& unit() const { return unit_; }

 protected:
  /// Registers a parameter. Names of parameters and children become parts of full names, which checkpoints
  /// store.
  /// @throws InvalidArgument for a name that is empty, not UTF-8, has control characters, or is already
  /// registered.
  Parameter param(std::string name, Shape shape, Init init);
  /// Registers a parameter that another module made: one tensor, one gradient, two places.
  Parameter tie(std::string name, const Parameter& other);
  /// Describes a buffer, unsharded on every rank: see Buffer. For a dtype other than f32, `init` gives f32
  /// values that are converted (to integers: towards zero). The program writes values that f32 cannot hold to
  /// data().
  /// @param persistent whether it is saved and loaded; if not, each start begins with `init`.
  Buffer buffer(std::string name, Shape shape, DType dtype, Init init, bool persistent = true);
  /// Registers a buffer that another module made: one tensor, two places.
  Buffer tie(std::string name, const Buffer& other);
  /// Registers a child; `module` must outlive this module's use.
  void child(std::string name, ModuleBase& module);

 private:
  friend class ShardRuntime;
  friend void wrap_module(ModuleBase& module, Wrap wrap);
  friend ShardRuntime& runtime_of(const ModuleBase& root);
  friend void assign_names(ModuleBase& root);
  template <class Handle>
  std::vector<std::pair<std::string, std::string>> tied_in(
      std::vector<std::pair<std::string, Handle>> ModuleBase::*registered) const;

  std::vector<std::pair<std::string, Parameter>> parameters_;
  std::vector<std::pair<std::string, Buffer>> buffers_;
  std::vector<std::pair<std::string, ModuleBase*>> children_;
  ModuleBase* parent_ = nullptr;
  bool training_ = true;
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Wrap> wrap_;             // recorded by fully_shard() until the root's call
  std::shared_ptr<ShardRuntime> runtime_;  // root only
};

/// Gives every parameter and buffer its full name; a tied one keeps the name of its first registration.
void assign_names(ModuleBase& root);

}  // namespace sherd
