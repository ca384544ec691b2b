// Calls of wrapped modules and their backward.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include <sherd/torch/detail/model.h>

namespace sherd::torch::detail {

/// Unit of this thread's innermost call of a wrapped module; null outside of calls.
Unit*& running_unit();

/// One recorded forward of a unit and its backward. Two functions in autograd's graph hold it. The one on the
/// results runs first in backward. The one on the arguments runs last: autograd runs functions in the reverse
/// order of recording. A call whose arguments need no gradient has no function there. It ends with the
/// enclosing call, or with the pass.
class Call final : public ::torch::CustomClassHolder {
 public:
  /// `parent`: the call whose forward encloses this one; may be null.
  Call(std::shared_ptr<UnitUse> unit, c10::intrusive_ptr<Call> parent, uint64_t step);
  /// Drops a due backward: the graph no longer exists.
  ~Call() override;

  UnitUse& unit() const { return *unit_; }
  /// Records the memory of the arguments. Call it before mark_inputs().
  void note_arguments(const std::vector<at::Tensor*>& tensors);
  /// Returns whether the result shares memory with an argument or another result of the call.
  bool shares_memory(const at::Tensor& result, at::TensorList results) const;
  /// Ends the forward: backward is due.
  void recorded();
  /// Begins the backward, or the part of a Reading. @throws InvalidArgument for a call that has no backward
  /// now.
  void enter();
  /// Ends what enter() began.
  void leave();
  /// Returns whether this call is in the forward of `other`.
  bool inside(const Call& other) const;

 private:
  friend class Pass;
  friend class Reading;
  enum class State {
    forward,  // runs, or recorded nothing for a backward
    due,
    backward,  // runs
    left,      // has ended, but its unit stays open for a further call in this pass
    done,
  };
  void give_up() noexcept;

  std::shared_ptr<UnitUse> unit_;
  c10::intrusive_ptr<Call> parent_;
  uint64_t step_;
  State state_ = State::forward;
  std::set<const c10::StorageImpl*> arguments_;
};

/// One backward of autograd through calls of one model. The final callback of autograd's engine owns it.
/// Destruction before finish() means that an exception ended the backward.
class Pass {
 public:
  explicit Pass(std::shared_ptr<Model> model) : model_(std::move(model)) {}
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  /// Returns the pass that runs on this thread, or a new one.
  static std::shared_ptr<Pass> of(const std::shared_ptr<Model>& model);
  void enter(c10::intrusive_ptr<Call> call);
  void leave(Call& call);
  void finish();
  /// Returns the call whose backward runs; null between calls.
  c10::intrusive_ptr<Call> innermost() const {
    return open_.empty() ? c10::intrusive_ptr<Call>() : open_.back();
  }

 private:
  /// Ends the unit's backward and reduces its gradients, unless `more`: a further call of the unit follows.
  void close(size_t at, bool more);

  std::shared_ptr<Model> model_;
  std::vector<c10::intrusive_ptr<Call>> open_;  // in the order of enter()
  bool finished_ = false;
};

/// One run of autograd through calls of one model that adds to no parameter's gradient:
/// torch::autograd::grad(), or backward() of chosen inputs. It unshards weights as a backward does, reduces
/// nothing, and leaves due backwards due.
/// With create_graph, the gradients of a call's arguments and parameters are marked as the call's results
/// are. A later run through that graph enters the call before it needs the weights, and keeps it. Owned as a
/// Pass is.
class Reading {
 public:
  Reading(std::shared_ptr<Model> model, int task);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  /// Returns the reading that runs on this thread, or a new one. Null when autograd adds to gradients of the
  /// model's parameters.
  static std::shared_ptr<Reading> of(const std::shared_ptr<Model>& model);
  void enter(const c10::intrusive_ptr<Call>& call);
  void leave(const Call& call);
  void finish();
  /// Returns the calls of a unit that this run has entered.
  std::vector<c10::intrusive_ptr<Call>> calls_of(const UnitUse& unit) const;

 private:
  void close(size_t at);
  bool any_open(const std::function<bool(const Call&)>& of) const;

  std::shared_ptr<Model> model_;
  std::weak_ptr<Reading> around_;
  const int task_;  // autograd's id of the run
  struct Entry {
    c10::intrusive_ptr<Call> call;
    bool open = true;
  };
  std::vector<Entry> entries_;  // in the order of enter()
};

/// Makes `tensors` outputs of a function whose backward leaves, resp. enters, `call`.
void mark_inputs(const c10::intrusive_ptr<Call>& call, const std::vector<at::Tensor*>& tensors);
void mark_outputs(const c10::intrusive_ptr<Call>& call, const std::vector<at::Tensor*>& tensors);

}  // namespace sherd::torch::detail
