// Calls of wrapped modules, and the backward through them.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include <sherd/torch/detail/model.h>

namespace sherd::torch::detail {

/// One recorded forward of a unit and its backward. Autograd's graph holds it by two functions around the
/// module's own: one on the results, which backward comes to first, and one on the arguments, which it comes
/// to when it has done all else of the call (autograd takes what was recorded later first). Arguments that
/// need no gradient have no such function: that call ends with the call around it, or with the pass.
class Call final : public ::torch::CustomClassHolder {
 public:
  /// In the forward of `parent`, if not null.
  Call(std::shared_ptr<UnitUse> unit, c10::intrusive_ptr<Call> parent, uint64_t step);
  /// The graph is gone: a backward that was due does not come.
  ~Call() override;

  UnitUse& unit() const { return *unit_; }
  /// Before they are marked.
  void note_arguments(const std::vector<at::Tensor*>& tensors);
  /// With an argument of the call, or with another one of its results.
  bool shares_memory(const at::Tensor& result, at::TensorList results) const;
  /// The forward has ended; backward is due.
  void recorded();
  /// Backward, or a Reading, comes from behind. @throws InvalidArgument when it cannot.
  void enter();
  /// It has left in front.
  void leave();
  /// It is in the forward of `other`.
  bool inside(const Call& other) const;

 private:
  friend class Pass;
  friend class Reading;
  enum class State {
    forward,  // runs, or has left nothing to go backward through
    due,
    backward,  // runs
    left,      // has ended, but what it began is open: a further call of the unit may come in this pass
    done,
  };
  void give_up() noexcept;

  std::shared_ptr<UnitUse> unit_;
  c10::intrusive_ptr<Call> parent_;
  uint64_t step_;
  State state_ = State::forward;
  std::set<const c10::StorageImpl*> arguments_;
};

/// One backward of autograd's through calls of one model. Autograd's engine owns it by its final callback:
/// destroyed before finish(), an exception has ended the backward.
class Pass {
 public:
  explicit Pass(std::shared_ptr<Model> model) : model_(std::move(model)) {}
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  /// That which runs on this thread, or a new one.
  static std::shared_ptr<Pass> of(const std::shared_ptr<Model>& model);
  void enter(c10::intrusive_ptr<Call> call);
  void leave(Call& call);
  void finish();
  /// The call in whose backward we are; null between calls.
  c10::intrusive_ptr<Call> innermost() const {
    return open_.empty() ? c10::intrusive_ptr<Call>() : open_.back();
  }

 private:
  /// The unit's backward ends: with its reduction, unless a further call of the unit is coming.
  void close(size_t at, bool more);

  std::shared_ptr<Model> model_;
  std::vector<c10::intrusive_ptr<Call>> open_;  // by the order in which they were entered
  bool finished_ = false;
};

/// One run of autograd through calls of one model that adds to the gradient of none of its parameters:
/// torch::autograd::grad(), or backward() of chosen inputs. Weights are unsharded as in a backward, and nothing is reduced;
/// a backward that is due stays due. With create_graph, what leaves a call (gradients of its arguments and parameters) is
/// marked as its results are: a later run through that graph enters the call before it needs the weights, and holds it.
/// Owned as a Pass is.
class Reading {
 public:
  Reading(std::shared_ptr<Model> model, int task);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  /// That which runs on this thread, or a new one; null when autograd adds to gradients of the model's parameters.
  static std::shared_ptr<Reading> of(const std::shared_ptr<Model>& model);
  void enter(const c10::intrusive_ptr<Call>& call);
  void leave(const Call& call);
  void finish();
  /// The calls of a unit that it has come to.
  std::vector<c10::intrusive_ptr<Call>> calls_of(const UnitUse& unit) const;

 private:
  void close(size_t at);
  bool any_open(const std::function<bool(const Call&)>& of) const;

  std::shared_ptr<Model> model_;
  std::weak_ptr<Reading> around_;
  const int task_;  // autograd's number of the run
  struct Entry {
    c10::intrusive_ptr<Call> call;
    bool open = true;
  };
  std::vector<Entry> entries_;  // by the order in which they were entered
};

/// `tensors` as outputs of a function on the way back from which `call` is left, resp. entered.
void mark_inputs(const c10::intrusive_ptr<Call>& call, const std::vector<at::Tensor*>& tensors);
void mark_outputs(const c10::intrusive_ptr<Call>& call, const std::vector<at::Tensor*>& tensors);

}  // namespace sherd::torch::detail
