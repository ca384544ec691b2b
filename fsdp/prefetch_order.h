// Order of the units' use, and the units to prefetch from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace sherd {

/// Kind of a forward, by the backward that follows it.
enum class ForwardKind {
  evaluation,  // none
  recorded,    // one of its own, unless drop_backward() drops it
  recomputed,  // runs again for a pending backward, and adds none
};

/// State machine without devices or ranks. It receives the start and end of each unit's forward and backward,
/// and tracks open uses and pending backwards. It returns the units to gather while the starting one
/// computes.
///
/// Units are indices: 0 ... units - 1 in order of registration, then root(). Predictions:
///
/// - Forward: the order in which units began in the root's latest completed forward. The prediction stops at the
///   first unit that differs, until the root's next forward. The first forward of all predicts nothing.
/// - Backward: the reverse of the order in which this forward's units ended. A backward that skips units continues
///   after them; a backward of a unit without a forward predicts nothing.
/// - A forward inside the backward of any unit is a recomputation for a pending backward. It predicts nothing, is not
///   part of the order, and adds no backward.
/// - A forward outside the root's is not part of the order either.
///
/// Example: units a, b, c with prefetch 1, from the second forward on:
///
///    begin_forward(root) -> {a}    begin_forward(a) -> {b}     begin_forward(b) -> {c}     begin_forward(c) -> {}
///    begin_backward(root) -> {c}   begin_backward(c) -> {b}    begin_backward(b) -> {a}    begin_backward(a) -> {}
///
/// Calls nest: each begin_ is matched by end_, cancel() or take_back() of the same unit. The caller checks
/// that the innermost() use is of that kind. One thread uses it.
class PrefetchOrder {
 public:
  /// One call of a unit, open since its begin_.
  struct Use {
    bool backward = false;
    bool training = true;
    bool recomputes = false;
    int due_before = 0;  // due() returns to this if the call is cancelled
    // State of the order that take_back() restores.
    size_t recorded_before = 0, backward_before = 0;
    bool followed_before = false;
  };
  /// Use that ended with an exception.
  struct Cancelled {
    int unit;
    bool backward;
  };

  /// `units`: count without the root. `prefetch`: units to gather ahead of the one that computes, at least 0.
  PrefetchOrder(int units, int prefetch);

  int root() const { return root_; }
  /// Returns the units by the start of their forward, in the root's latest completed forward.
  const std::vector<int>& recorded() const { return order_; }

  /// Begins a forward; the backward of a recorded one becomes due.
  /// @return the units to gather now, in this order; they may be unsharded already.
  std::vector<int> begin_forward(int unit, ForwardKind kind);
  void end_forward(int unit);
  /// Begins a backward. @return as begin_forward().
  std::vector<int> begin_backward(int unit);
  /// Ends a backward; one less is due.
  void end_backward(int unit);
  /// Drops a pending backward of one of the unit's forwards.
  void drop_backward(int unit) { at(unit).due = at(unit).due > 0 ? at(unit).due - 1 : 0; }

  /// Takes back the innermost use of the unit, which could not begin, for example because a gather failed.
  void take_back(int unit);
  /// Cancels the innermost use of the unit, which an exception ended. A backward, or the outermost forward in
  /// training mode, ends the step, too (broken()). An inner forward may be caught and replaced by the module
  /// around it.
  void cancel(int unit);
  /// Marks the step as broken by an exception while no use was open, for example in a backward that reached
  /// this unit.
  void break_step(int unit) {
    if (!broken_) broken_ = Cancelled{unit, true};
  }
  /// Makes one backward of the unit due although no forward of this step has used it.
  void owe_backward(int unit) { at(unit).due = 1; }

  /// Begins a new step: no backward is due and the step is not broken. The order of the latest completed
  /// forward stays.
  void reset();
  /// Returns an id that changes with reset(): a forward of an earlier step has no backward.
  uint64_t step() const { return step_; }
  /// Drops the recorded order, too: some ranks may not have it.
  void forget();

  /// Returns the forwards of the unit whose backward is pending.
  int due(int unit) const { return at(unit).due; }
  /// Return the open uses of the unit, and the backwards among them.
  int open(int unit) const { return static_cast<int>(at(unit).uses.size()); }
  int open_backwards(int unit) const;
  /// Returns the use of the unit that began last, or null.
  const Use* innermost(int unit) const { return at(unit).uses.empty() ? nullptr : &at(unit).uses.back(); }
  /// Returns the open uses of all units.
  int open() const { return open_; }
  /// Returns the use whose exception ended the step.
  const std::optional<Cancelled>& broken() const { return broken_; }

 private:
  struct Unit {
    int due = 0;
    std::vector<Use> uses;  // the innermost last
  };
  Unit& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  const Unit& at(int unit) const { return units_[static_cast<size_t>(unit)]; }
  /// Returns a use with the present state, before its begin_ changes it.
  Use begun(int unit) const;
  void open_use(int unit, const Use& use);
  Use close_use(int unit);
  std::vector<int> ahead_of_forward(int unit);
  std::vector<int> ahead_of_backward(int unit);

  int root_;
  size_t prefetch_;
  std::vector<Unit> units_;  // the root last
  int open_ = 0, open_backwards_ = 0;

  std::vector<int> order_;      // units by the start of their forward, in the root's latest completed forward
  std::vector<int> recording_;  // the same for the running forward
  bool follows_order_ = false;  // the running forward has matched order_ so far
  std::vector<int> ended_;      // units by the end of their forward; backward runs in reverse
  size_t backward_at_ = 0;      // the backwards of ended_[backward_at_...] have begun

  std::optional<Cancelled> cancelled_;  // the first use that the current exception ended
  std::optional<Cancelled> broken_;
  uint64_t step_ = 1;
};

}  // namespace sherd
