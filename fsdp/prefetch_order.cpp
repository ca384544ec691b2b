#include <sherd/fsdp/prefetch_order.h>

#include <algorithm>
#include <utility>

namespace sherd {

PrefetchOrder::PrefetchOrder(int units, int prefetch)
    : root_(units), prefetch_(static_cast<size_t>(prefetch)), units_(static_cast<size_t>(units) + 1) {}

// Returns the open backwards of the unit. A unit may be open several times, for example recomputed inside its
// own backward.
int PrefetchOrder::open_backwards(int unit) const {
  const auto& uses = at(unit).uses;
  return static_cast<int>(std::count_if(uses.begin(), uses.end(), [](const Use& u) { return u.backward; }));
}

PrefetchOrder::Use PrefetchOrder::begun(int unit) const {
  return {.due_before = due(unit),
          .recorded_before = recording_.size(),
          .backward_before = backward_at_,
          .followed_before = follows_order_};
}

void PrefetchOrder::open_use(int unit, const Use& use) {
  at(unit).uses.push_back(use);
  ++open_;
  if (use.backward) ++open_backwards_;
}

PrefetchOrder::Use PrefetchOrder::close_use(int unit) {
  const Use use = at(unit).uses.back();
  at(unit).uses.pop_back();
  --open_;
  if (use.backward) --open_backwards_;
  return use;
}

std::vector<int> PrefetchOrder::begin_forward(int unit, ForwardKind kind) {
  // Backwards of any unit count: a checkpointed block recomputes the units inside it.
  const bool recomputes = open_backwards_ > 0 || kind == ForwardKind::recomputed;
  Use use = begun(unit);
  use.training = kind != ForwardKind::evaluation;
  use.recomputes = recomputes;
  std::vector<int> ahead;
  // A recomputation leaves the recorded order unchanged, and its backward is next: it prefetches nothing.
  if (!recomputes) ahead = ahead_of_forward(unit);
  // A recorded forward inside a backward is a recomputation for one that is due. Its unit may have had no
  // recorded forward before: max() makes one due.
  int& due = at(unit).due;
  if (kind == ForwardKind::recorded) due = recomputes ? std::max(due, 1) : due + 1;
  open_use(unit, use);
  return ahead;
}

// Ends a forward. The root's makes its order the one that the next forward is prefetched by.
void PrefetchOrder::end_forward(int unit) {
  if (!innermost(unit)->recomputes) {
    if (unit == root_) {
      order_ = std::exchange(recording_, {});
    } else if (open(root_) > 0) {
      // Inside the root's forward; a forward outside of it is in neither order.
      ended_.resize(backward_at_);  // units that have begun their backward leave the next one
      ended_.push_back(unit);
      backward_at_ = ended_.size();
    }
  }
  close_use(unit);
  // A use that ends without an exception has caught the exception of those inside it.
  cancelled_.reset();
}

// Begins a backward. Prefetches follow the order in which forwards have ended, from the last one.
std::vector<int> PrefetchOrder::begin_backward(int unit) {
  Use use = begun(unit);
  use.backward = true;
  std::vector<int> ahead = ahead_of_backward(unit);
  open_use(unit, use);
  return ahead;
}

void PrefetchOrder::end_backward(int unit) {
  --at(unit).due;
  close_use(unit);
  cancelled_.reset();
}

// Undoes a begin, so that a retry predicts and records the same. min(): the root's forward has cleared the
// vectors, and its retry does so again.
void PrefetchOrder::take_back(int unit) {
  const Use use = close_use(unit);
  at(unit).due = use.due_before;
  recording_.resize(std::min(recording_.size(), use.recorded_before));
  backward_at_ = std::min(ended_.size(), use.backward_before);
  follows_order_ = use.followed_before;
}

// Ends a use that an exception has left. A lost backward leaves gradients incomplete: the step is broken
// until reset().
void PrefetchOrder::cancel(int unit) {
  const Use use = close_use(unit);
  if (!use.backward) at(unit).due = use.due_before;
  // Uses unwind from the innermost: the first one names the cause in messages.
  if (!cancelled_) cancelled_ = Cancelled{unit, use.backward};
  // Evaluation leaves no pending backward, so it never breaks a step.
  const bool lost = use.backward || (use.training && open_ == 0);
  if (lost && !broken_) broken_ = cancelled_;
  if (open_ == 0) cancelled_.reset();
}

void PrefetchOrder::reset() {
  // order_ stays: the next step probably runs the same units, and all ranks have recorded the same.
  for (Unit& u : units_) u.due = 0;
  recording_.clear();
  ended_.clear();
  backward_at_ = 0;
  follows_order_ = false;
  broken_.reset();
  ++step_;
}

void PrefetchOrder::forget() {
  reset();
  order_.clear();
}

std::vector<int> PrefetchOrder::ahead_of_forward(int unit) {
  if (unit == root_) {
    recording_.clear();
    // Drops the order of an earlier forward, unless its backward is due: then one backward covers both
    // forwards.
    if (due(root_) == 0) {
      ended_.clear();
      backward_at_ = 0;
    }
    follows_order_ = true;
  } else {
    if (open(root_) == 0) return {};
    recording_.push_back(unit);
    const size_t at = recording_.size() - 1;
    // Prefetching stops at the first unit that differs from the recorded order, until the next forward of the
    // root. A unit gathered in the wrong order could take a slot that an earlier unit needs.
    follows_order_ = follows_order_ && at < order_.size() && order_[at] == unit;
  }
  if (!follows_order_) return {};
  const size_t next = recording_.size();
  const size_t end = std::min(order_.size(), next + prefetch_);
  std::vector<int> ahead;
  // Nearest first: gathers run in this order on one stream.
  for (size_t i = next; i < end; ++i) ahead.push_back(order_[i]);
  return ahead;
}

std::vector<int> PrefetchOrder::ahead_of_backward(int unit) {
  if (unit != root_) {
    // Units may have ended several times; the nearest end before the current position belongs to this
    // backward.
    size_t at = backward_at_;
    while (at > 0 && ended_[at - 1] != unit) --at;
    // A unit without a forward leaves the position: the next known unit continues from there.
    if (at == 0) return {};
    backward_at_ = at - 1;
  }
  std::vector<int> ahead;
  for (size_t k = 1; k <= prefetch_ && k <= backward_at_; ++k) ahead.push_back(ended_[backward_at_ - k]);
  return ahead;
}

}  // namespace sherd
