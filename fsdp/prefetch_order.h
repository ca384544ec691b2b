// Order of the units' use, and the units to prefetch from it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace sherd {

/// What kind of backward a forward in training mode has.
enum class ForwardKind {
  single,      // of the root, only that of the latest forward may come
  recorded,    // by a tape: every forward has its own, the root's, too, until give_up_backward()
  recomputed,  // one that is due already, for which this forward runs again
};

/// A state machine without devices or ranks. It is told when each unit's forward and backward begin and end,
/// keeps what is open and what is still due, and answers which units to gather while the one that begins
/// computes.
///
/// Units are numbers: 0 ... units - 1 in order of registration, then root(). What is predicted:
///
/// - Forward: the order in which units began in the latest forward of the root that ended. The prediction
/// stops at
///   the first unit that differs, until the root's next forward; the first forward of all predicts nothing.
/// - Backward: the reverse of the order in which this forward's units ended. A backward that skips units goes
/// on
///   behind those; one of a unit that no forward had predicts nothing.
/// - A forward inside the backward of any unit is a recomputation for a backward that is due already. It
/// predicts
///   nothing, is no part of the order, and adds no backward.
/// - A forward outside of the root's is no part of the order either.
///
/// For example, units a, b, c with prefetch 1, from the second forward on:
///
///     begin_forward(root) -> {a}    begin_forward(a) -> {b}     begin_forward(b) -> {c}     begin_forward(c)
///     -> {} begin_backward(root) -> {c}   begin_backward(c) -> {b}    begin_backward(b) -> {a}
///     begin_backward(a) -> {}
///
/// Calls nest: each begin_ is matched by end_, cancel() or take_back() of the same unit. Who calls checks
/// that the innermost() use is of that kind. One thread uses it.
class PrefetchOrder {
 public:
  /// One call of a unit, open from its begin_ on.
  struct Use {
    bool backward = false;
    bool training = true;
    bool recomputes = false;
    int due_before = 0;  // due() is this again if the call is cancelled
  };
  /// A use that ended with an exception.
  struct Cancelled {
    int unit;
    bool backward;
  };

  /// `units`: without the root. `prefetch`: units to gather ahead of the one that computes, at least 0.
  PrefetchOrder(int units, int prefetch);

  int root() const { return root_; }
  /// Units by the begin of their forward, of the root's latest forward that ended.
  const std::vector<int>& recorded() const { return order_; }

  /// A forward begins; in training mode its backward becomes due. That of the root in training mode also
  /// gives up the backwards of an earlier forward, if it is `single`.
  /// @return the units to gather now, in this order; they may be whole already.
  std::vector<int> begin_forward(int unit, bool training, ForwardKind kind = ForwardKind::single);
  void end_forward(int unit);
  /// A backward begins. @return as above.
  std::vector<int> begin_backward(int unit);
  /// One backward less is due.
  void end_backward(int unit);
  /// The backward of one of the unit's forwards will not come.
  void give_up_backward(int unit) { at(unit).due = at(unit).due > 0 ? at(unit).due - 1 : 0; }

  /// The innermost use of the unit could not begin after all: its weights could not be gathered, say.
  void take_back(int unit);
  /// The innermost use of the unit ended with an exception. A backward, or the outermost forward in training
  /// mode, takes the step along (broken()); an inner forward may be caught and replaced by the module around
  /// it.
  void cancel(int unit);
  /// An exception has ended the step while no use was open: a backward that came to this unit, say.
  void break_step(int unit) {
    if (!broken_) broken_ = Cancelled{unit, true};
  }
  /// One backward of the unit is due although no forward of this step has used it.
  void owe_backward(int unit) { at(unit).due = 1; }

  /// A new step: nothing is due, and none is broken. What the latest whole forward recorded stays.
  void reset();
  /// The recorded order goes, too: not every rank may have it.
  void forget();

  /// Forwards of the unit whose backward has not come yet.
  int due(int unit) const { return at(unit).due; }
  /// Uses of the unit that are open, and the backwards among them.
  int open(int unit) const { return static_cast<int>(at(unit).uses.size()); }
  int open_backwards(int unit) const;
  /// The use of the unit that began last, or null.
  const Use* innermost(int unit) const { return at(unit).uses.empty() ? nullptr : &at(unit).uses.back(); }
  /// Uses of all units that are open.
  int open() const { return open_; }
  /// The use whose exception has ended the step.
  const std::optional<Cancelled>& broken() const { return broken_; }

 private:
  struct Unit {
    int due = 0;
    std::vector<Use> uses;  // the innermost last
  };
  Unit& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  const Unit& at(int unit) const { return units_[static_cast<size_t>(unit)]; }
  void open_use(int unit, const Use& use);
  Use close_use(int unit);
  std::vector<int> ahead_of_forward(int unit);
  std::vector<int> ahead_of_backward(int unit);

  int root_;
  size_t prefetch_;
  std::vector<Unit> units_;  // the root last
  int open_ = 0, open_backwards_ = 0;

  std::vector<int> order_;  // units by the begin of their forward, of the root's latest forward that ended
  std::vector<int> recording_;  // the same of the forward that runs
  bool follows_order_ = false;  // it has been as order_ so far
  std::vector<int> ended_;      // units by the end of their forward: backward begins in reverse
  size_t backward_at_ = 0;      // the units ended_[backward_at_...] have begun their backward

  std::optional<Cancelled> cancelled_;  // the first use that the exception in flight has ended
  std::optional<Cancelled> broken_;
};

}  // namespace sherd
