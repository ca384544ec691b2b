#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include <sherd/nn/tape.h>

namespace sherd::nn {

// Resumes recording in the middle of a backward, which has paused it.
class Tape::Again {
 public:
  Again(Tape& tape, Node& scope) : tape_(tape), scope_(scope), paused_(std::exchange(tape.paused_, 0)) {
    tape_.recomputing_ = true;
    for (auto& [state, exchange] : scope_.states) exchange();
  }
  ~Again() {
    for (auto& [state, exchange] : scope_.states) exchange();
    tape_.paused_ = paused_;
    tape_.recomputing_ = false;
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  Tape& tape_;
  Node& scope_;
  int paused_;
};

// One walk from the last operation to the first.
class Tape::Pass {
 public:
  explicit Pass(Tape& tape) : tape_(tape), no_grad_(tape) {
    for (const Node& n : tape.nodes_) {
      if (n.kind == Node::Kind::end_call) count(n.call);
      for (const Forward& call : n.hidden) count(call);
    }
    tape_.running_ = true;
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  /// After an exception: reshards the units in use, innermost first; no step of their models continues.
  ~Pass() {
    tape_.running_ = false;
    if (ended_) return;
    for (; !open_.empty(); open_.pop_back())
      if (open_.back().reached) {
        open_.back().unit->exchange_recorder(open_.back().around);
        open_.back().unit->cancel_backward();
      }
    for (auto& [unit, calls] : outstanding_) unit->break_step();
  }

  void run() {
    while (!tape_.nodes_.empty()) {
      Node node = std::move(tape_.nodes_.back());
      tape_.nodes_.pop_back();
      switch (node.kind) {
        case Node::Kind::operation:
          operation(node);
          break;
        case Node::Kind::end_call:
          enter(node);
          break;
        case Node::Kind::begin_call:
          leave();
          break;
        case Node::Kind::recompute:
          recompute(node);
          break;
      }
    }
    ended_ = true;
  }

 private:
  struct OpenCall {
    std::shared_ptr<Unit> unit;
    bool stale;
    bool reached;             // the objective depends on it
    ForwardRecorder* around;  // what the unit's model had as its recorder before; of reached ones
  };
  // Backwards of stale calls are not due.
  void count(const Forward& call) {
    if (!call.stale()) ++outstanding_[call.unit];
  }
  static void require_current(const Forward& call) {
    if (call.stale())
      throw InvalidArgument(
          fmt::format("backward through a call of unit '{}' that this tape recorded before the latest "
                      "optimizer step, change of weights or "
                      "reset_step(): the weights that it used are gone; run the forward again, and clear() a "
                      "tape whose backward does not "
                      "come before the step",
                      call.unit->name()));
  }
  Value& value(int64_t id) { return tape_.values_[static_cast<size_t>(id)]; }

  void operation(Node& node) {
    std::vector<Gradient> outputs;
    bool any = false;
    for (int64_t v = node.first_output; v < node.end_output; ++v) {
      outputs.push_back(std::exchange(value(v).gradient, {}));
      any = any || outputs.back().defined();
    }
    if (!any) return;
    std::vector<Gradient> sums;
    for (const Var& x : node.inputs)
      sums.push_back(x.requires_grad() ? std::exchange(value(x.id_).gradient, {}) : Gradient());
    std::vector<Gradient> inputs = node.backward(BackwardCall(outputs, sums, node.inputs));
    // Memory that only this operation held may now be written by the sums below.
    node.backward = nullptr;
    outputs.clear();
    if (inputs.size() != node.inputs.size())
      throw InvalidArgument(fmt::format("the backward of {} returned {} gradients for its {} inputs",
                                        node.function, inputs.size(), node.inputs.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Var& x = node.inputs[i];
      if (!x.requires_grad()) continue;
      Value& v = value(x.id_);
      check(inputs[i], v, node.function);
      v.gradient.add(std::exchange(sums[i], {}), *v.device, v.shape, v.dtype);
      v.gradient.add(std::exchange(inputs[i], {}), *v.device, v.shape, v.dtype);
    }
  }

  // Returns whether the objective depends on a value made inside.
  bool reached(const Node& node) const {
    return std::any_of(tape_.values_.begin() + node.first_output, tape_.values_.begin() + node.end_output,
                       [](const Value& v) { return v.gradient.defined(); });
  }

  // The scope's operations are recorded at the scope's place, the end of the remaining tape, and backward
  // continues through them. The same operations make the same values in the same order, so the k-th value of
  // the first run corresponds to the k-th of the second, and takes over its gradient.
  void recompute(Node& scope) {
    if (!reached(scope)) {
      // Units inside of others before those, as where the calls are walked through.
      for (auto call = scope.hidden.rbegin(); call != scope.hidden.rend(); ++call)
        if (!call->stale()) call->unit->drop_backward(--outstanding_[call->unit] == 0);
      return;
    }
    for (const Forward& call : scope.hidden) require_current(call);
    const auto first = static_cast<int64_t>(tape_.values_.size());
    const size_t first_node = tape_.nodes_.size();
    {
      if (scope.arguments) tape_.fetch(*scope.arguments);
      const Again again(tape_, scope);
      scope.again();
    }
    scope.arguments = nullptr;
    scope.again = nullptr;
    std::vector<Forward> calls;
    for (size_t i = first_node; i < tape_.nodes_.size(); ++i) {
      if (tape_.nodes_[i].kind == Node::Kind::begin_call) calls.push_back(tape_.nodes_[i].call);
      calls.insert(calls.end(), tape_.nodes_[i].hidden.begin(), tape_.nodes_[i].hidden.end());
    }
    bool same = calls == scope.hidden &&
                static_cast<int64_t>(tape_.values_.size()) - first == scope.end_output - scope.first_output;
    for (int64_t i = 0; same && i < scope.end_output - scope.first_output; ++i) {
      Value &once = value(scope.first_output + i), &now = value(first + i);
      same = once.shape == now.shape && once.dtype == now.dtype;
      if (same) now.gradient = std::exchange(once.gradient, {});
    }
    if (!same)
      throw InvalidArgument(
          "recompute(): the second run of a scope did other operations than the first; what runs inside may "
          "depend on "
          "its arguments, on parameters and on what stays as it is until backward, and on nothing else");
  }

  // Backward comes to a call from behind.
  void enter(const Node& end) {
    const bool reached = this->reached(end);
    const bool stale = end.call.stale();
    ForwardRecorder* around = nullptr;
    if (reached) {
      require_current(end.call);
      end.call.unit->pre_backward();
      around = end.call.unit->exchange_recorder(&tape_);
    }
    open_.push_back({end.call.unit, stale, reached, around});
  }

  // The units inside have been left before.
  void leave() {
    const OpenCall call = open_.back();
    if (call.reached) call.unit->exchange_recorder(call.around);
    if (call.stale) return open_.pop_back();
    const bool more = --outstanding_[call.unit] > 0;
    call.reached ? call.unit->post_backward(!more) : call.unit->drop_backward(!more);
    open_.pop_back();
  }

  Tape& tape_;
  NoGrad no_grad_;  // a function's backward is not recorded
  std::map<std::shared_ptr<Unit>, int> outstanding_;
  std::vector<OpenCall> open_;
  bool ended_ = false;
};

void Tape::check(const Gradient& gradient, const Value& value, const char* function) {
  const Tensor& t = gradient.tensor();
  if (!t.defined() || (t.shape() == value.shape && t.dtype() == value.dtype)) return;
  throw ShapeMismatch(fmt::format(
      "{} a gradient {} {} for a value {} {}",
      function != nullptr ? fmt::format("the backward of {} returned", function) : "backward() begins with",
      name_of(t.dtype()), to_string(t.shape()), name_of(value.dtype), to_string(value.shape)));
}

void Tape::backward(const Var& objective, Gradient seed) {
  if (objective.tape_ != this)
    throw InvalidArgument(
        objective.tape_ == nullptr
            ? "backward() of a value on no tape: begin with Tape::input(), outside of NoGrad"
            : "backward() of a value on another tape");
  if (!objective.requires_grad())
    throw InvalidArgument(
        "backward() of a value that depends on no parameter and no leaf, or was computed inside NoGrad; "
        "gradients "
        "are constants: the tape has no second derivatives");
  if (objective.run_ != run_ || values_.empty())
    throw InvalidArgument(
        "a second backward() over operations that the first has freed; run the forward again, or add the "
        "objectives "
        "up and run one backward");
  if (running_ || scope_ != nullptr || !open_calls_.empty())
    throw InvalidArgument(
        "backward() inside a module's forward or a function's backward on the same tape; let that return "
        "first");
  Value& value = values_[static_cast<size_t>(objective.id_)];
  if (!seed.defined()) {
    if (numel_of(value.shape) != 1)
      throw InvalidArgument(fmt::format(
          "backward() of a value {} without a gradient: only a value of one element has the gradient 1; make "
          "one "
          "by nn::sum() or nn::mean(), or give the gradient of each element: backward(value, gradient)",
          to_string(value.shape)));
    seed = Gradient::constant(1);
  }
  check(seed, value, nullptr);
  value.gradient = std::move(seed);
  leaves_.clear();
  try {
    Pass(*this).run();
    for (size_t i = 0; i < values_.size(); ++i)
      if (Value& v = values_[i]; v.leaf && v.gradient.defined())
        leaves_.emplace_back(static_cast<int64_t>(i), v.gradient.tensor(*v.device, v.shape, v.dtype));
  } catch (...) {
    clear();
    throw;
  }
  forget();
}

void backward(const Var& objective) {
  if (objective.tape() == nullptr)
    throw InvalidArgument("backward() of a value on no tape: begin with Tape::input(), outside of NoGrad");
  objective.tape()->backward(objective);
}

}  // namespace sherd::nn
