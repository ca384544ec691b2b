#include <sherd/nn/tape.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace sherd::nn {

Tape::~Tape() { clear(); }

Var Tape::add_value(Tensor value, bool leaf) {
  values_.push_back({value.shape(), value.dtype(), &value.device(), leaf, {}});
  return Var(std::move(value), this, static_cast<int64_t>(values_.size()) - 1, run_);
}

Var Tape::input(Tensor value) { return Var(std::move(value), this, -1, run_); }

Var Tape::leaf(Tensor value) { return add_value(std::move(value), true); }

Tensor Tape::gradient(const Var& leaf) const {
  for (auto& [id, gradient] : leaves_)
    if (leaf.tape_ == this && leaf.run_ == run_ - 1 && id == leaf.id_) return gradient;
  return {};
}

std::vector<Var> Tape::record(std::vector<Var> inputs, std::vector<Tensor> outputs, bool trains_parameters,
                              Backward backward) {
  bool wanted = trains_parameters;
  for (const Var& x : inputs) {
    wanted = wanted || x.requires_grad();
    if (x.tape_ != nullptr && x.tape_ != this)
      throw InvalidArgument("a function of values on two tapes; compute with values of one tape, or detach() the others");
    if (x.requires_grad() && x.run_ != run_)
      throw InvalidArgument(
          "a value from before the latest backward() or clear() of its tape: the operations behind it are forgotten; "
          "compute it again, or detach() it");
  }
  std::vector<Var> values;
  if (!wanted || !recording()) {
    for (Tensor& t : outputs) values.push_back(input(std::move(t)));
    return values;
  }
  const auto first = static_cast<int64_t>(values_.size());
  for (Tensor& t : outputs) values.push_back(add_value(std::move(t), false));
  for (Var& x : inputs) x.value_ = Tensor();  // the function keeps the memory that its backward reads, and no other
  nodes_.push_back({Node::Kind::operation, std::move(inputs), first, static_cast<int64_t>(values_.size()),
                    std::move(backward), nullptr});
  return values;
}

void Tape::begin_call(std::shared_ptr<Unit> unit) {
  open_calls_.push_back(nodes_.size());
  nodes_.push_back({Node::Kind::begin_call, {}, static_cast<int64_t>(values_.size()), 0, {}, std::move(unit)});
}

void Tape::end_call() {
  const Node& begin = nodes_[open_calls_.back()];
  const Node end{Node::Kind::end_call, {}, begin.first_output, static_cast<int64_t>(values_.size()), {}, begin.unit};
  open_calls_.pop_back();
  if (end.first_output == end.end_output) {  // nothing inside has a gradient
    nodes_.pop_back();
    end.unit->give_up_backward(false);
    return;
  }
  nodes_.push_back(end);
}

void Tape::cancel_call() noexcept {
  const size_t begin = open_calls_.back();
  open_calls_.pop_back();
  // Values keep their numbers: whoever still holds one of these finds no operation behind it.
  give_up_from(begin + 1);
  nodes_.resize(begin);
}

void Tape::give_up_from(size_t begin) noexcept {
  for (size_t i = begin; i < nodes_.size(); ++i)
    if (nodes_[i].kind == Node::Kind::end_call && nodes_[i].unit) try {
        nodes_[i].unit->give_up_backward(false);
      } catch (...) {  // the model is gone
      }
}

void Tape::forget() {
  nodes_.clear();
  values_.clear();
  ++run_;
}

void Tape::clear() noexcept {
  if (running_ || !open_calls_.empty()) return;
  give_up_from(0);
  leaves_.clear();
  forget();
}

// One walk from the last operation to the first.
class Tape::Pass {
 public:
  explicit Pass(Tape& tape) : tape_(tape), no_grad_(tape) {
    for (const Node& n : tape.nodes_)
      if (n.kind == Node::Kind::end_call) ++outstanding_[n.unit];
    tape_.running_ = true;
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  /// After an exception: the units in use are given back, innermost first, and no step of their models goes on.
  ~Pass() {
    tape_.running_ = false;
    if (ended_) return;
    for (; !open_.empty(); open_.pop_back())
      if (open_.back().reached) open_.back().unit->cancel_backward();
    for (auto& [unit, calls] : outstanding_) unit->break_step();
  }

  void run() {
    for (size_t i = tape_.nodes_.size(); i-- > 0;) {
      Node node = std::move(tape_.nodes_[i]);
      tape_.nodes_.pop_back();
      switch (node.kind) {
        case Node::Kind::operation: operation(node); break;
        case Node::Kind::end_call: enter(node); break;
        case Node::Kind::begin_call: leave(); break;
      }
    }
    ended_ = true;
  }

 private:
  struct OpenCall {
    std::shared_ptr<Unit> unit;
    bool reached;  // the objective depends on it
  };
  Value& value(int64_t id) { return tape_.values_[static_cast<size_t>(id)]; }

  void operation(Node& node) {
    std::vector<Gradient> outputs;
    bool any = false;
    for (int64_t v = node.first_output; v < node.end_output; ++v) {
      outputs.push_back(std::exchange(value(v).gradient, {}));
      any = any || outputs.back().defined();
    }
    if (!any) return;
    std::vector<Gradient> inputs = node.backward(BackwardCall(outputs, node.inputs));
    // What only this operation held may now be written by the sums below.
    node.backward = nullptr;
    outputs.clear();
    if (inputs.size() != node.inputs.size())
      throw InvalidArgument(fmt::format("a function's backward returned {} gradients for its {} inputs", inputs.size(),
                                        node.inputs.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Var& x = node.inputs[i];
      if (!x.requires_grad()) continue;
      Value& v = value(x.id_);
      check(inputs[i], v, "a function's backward returned");
      v.gradient.add(std::exchange(inputs[i], {}), *v.device, v.shape, v.dtype);
    }
  }

  // Backward comes to a call from behind.
  void enter(const Node& end) {
    const bool reached = std::any_of(tape_.values_.begin() + end.first_output, tape_.values_.begin() + end.end_output,
                                     [](const Value& v) { return v.gradient.defined(); });
    if (reached) end.unit->pre_backward();
    open_.push_back({end.unit, reached});
  }

  // The units inside have been left before.
  void leave() {
    const OpenCall call = open_.back();
    const bool more = --outstanding_[call.unit] > 0;
    if (!call.reached) {
      call.unit->give_up_backward(!more);
    } else if (more) {
      call.unit->suspend_backward();
    } else {
      call.unit->post_backward();
    }
    open_.pop_back();
  }

  Tape& tape_;
  NoGrad no_grad_;  // what a function's backward computes is no part of the tape
  std::map<std::shared_ptr<Unit>, int> outstanding_;
  std::vector<OpenCall> open_;
  bool ended_ = false;
};

void Tape::check(const Gradient& gradient, const Value& value, const char* what) {
  const Tensor& t = gradient.tensor();
  if (!t.defined() || (t.shape() == value.shape && t.dtype() == value.dtype)) return;
  throw ShapeMismatch(fmt::format("{} a gradient {} {} for a value {} {}", what, name_of(t.dtype()),
                                  to_string(t.shape()), name_of(value.dtype), to_string(value.shape)));
}

void Tape::backward(const Var& objective, Gradient seed) {
  if (objective.tape_ != this)
    throw InvalidArgument(objective.tape_ == nullptr
                              ? "backward() of a value on no tape: begin with Tape::input(), outside of NoGrad"
                              : "backward() of a value on another tape");
  if (!objective.requires_grad())
    throw InvalidArgument(
        "backward() of a value that depends on no parameter and no leaf, or was computed inside NoGrad");
  if (objective.run_ != run_ || values_.empty())
    throw InvalidArgument(
        "a second backward() over operations that the first has freed; run the forward again, or add the objectives "
        "up and run one backward");
  if (running_ || !open_calls_.empty())
    throw InvalidArgument(
        "backward() inside a module's forward or a function's backward on the same tape; let that return first");
  check(seed, values_[static_cast<size_t>(objective.id_)], "backward() begins with");
  values_[static_cast<size_t>(objective.id_)].gradient = std::move(seed);
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
