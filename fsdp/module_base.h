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
struct FullyShardOptions;
struct Wrap;

/// The tree of a model. Two kinds of modules derive from it: Module, with a backward written by hand, and
/// nn::Module, whose forwards a tape records; one tree may hold both.
///
/// Registered children and parameters are kept by address resp. handle, so that modules can be neither copied nor
/// moved: a std::vector of modules can be made with its final size only, and cannot grow (the compiler refuses);
/// ModuleList (module_list.h), std::deque and vectors of std::unique_ptr can. A module that is destroyed leaves its
/// parent's list; parts that outlive a sharded root have no weights any more, and calls of wrapped ones throw. One
/// rank's thread uses a module.
class ModuleBase {
 public:
  ModuleBase() = default;
  virtual ~ModuleBase();
  ModuleBase(const ModuleBase&) = delete;
  ModuleBase& operator=(const ModuleBase&) = delete;

  /// Every parameter below this module once (tied ones under their first name), depth first: own parameters
  /// in order of registration, then children.
  std::vector<std::pair<std::string, Parameter>> named_parameters() const;
  /// {other name, first name} of every place of a tied parameter but its first, in the order of
  /// named_parameters().
  std::vector<std::pair<std::string, std::string>> tied_names() const;
  /// The same of buffers.
  std::vector<std::pair<std::string, std::string>> tied_buffer_names() const;
  /// Every buffer below this module once (tied ones under their first name), depth first, persistent or not.
  std::vector<std::pair<std::string, Buffer>> named_buffers() const;
  /// Calls f(name, module) for this module (name "") and everything below it.
  void visit(const std::function<void(const std::string&, ModuleBase&)>& f, const std::string& prefix = "");

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
  /// Forgets what forwards kept for backwards that will not come (reset_step()).
  virtual void drop_activations() {}

  /// Names of parameters and children become parts of full names, which checkpoints hold.
  /// @throws InvalidArgument for a name that is empty, not UTF-8, or has control characters, or is there
  /// twice.
  Parameter param(std::string name, Shape shape, Init init);
  /// Registers a parameter that another module made: one tensor, one gradient, two places.
  Parameter tie(std::string name, const Parameter& other);
  /// Describes a buffer, which every rank has whole: see Buffer. Of dtypes other than f32 it starts from f32 values
  /// converted (integers: towards zero); what those cannot hold is written to data() by the program.
  /// @param persistent whether it is saved and loaded; if not, each start begins with `init`.
  Buffer buffer(std::string name, Shape shape, DType dtype, Init init, bool persistent = true);
  /// Registers a buffer that another module made: one tensor, two places.
  Buffer tie(std::string name, const Buffer& other);
  /// Registers a child; `module` must outlive this module's use.
  void child(std::string name, ModuleBase& module);

 private:
  friend class ShardRuntime;
  friend void fully_shard(ModuleBase& module, const DeviceMesh& mesh, const FullyShardOptions& options);
  friend ShardRuntime& runtime_of(const ModuleBase& root);
  friend void reset_step(ModuleBase& root);
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
  std::shared_ptr<Wrap> wrap_;             // noted by fully_shard() until the root's call
  std::shared_ptr<ShardRuntime> runtime_;  // root only
};

/// Gives every parameter and buffer its full name; later registrations of a tied one keep the first name.
void assign_names(ModuleBase& root);

}  // namespace sherd
