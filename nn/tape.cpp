#include <sherd/nn/tape.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <sherd/nn/detail/scope_arguments.h>

namespace sherd::nn {

Tape::Forward Tape::Forward::now(std::shared_ptr<Unit> unit) {
  const uint64_t step = unit->step();
  return {std::move(unit), step};
}

bool Tape::Forward::stale() const { return unit->step() != step; }

void Tape::Forward::give_up() noexcept {
  try {
    if (!stale()) unit->drop_backward();
  } catch (...) {  // the model no longer exists
  }
}

Tape::~Tape() { clear(); }

Var Tape::add_value(Tensor value, bool leaf) {
  values_.push_back({value.shape(), value.dtype(), &value.device(), leaf, {}});
  return Var(std::move(value), this, static_cast<int64_t>(values_.size()) - 1, run_);
}

Var Tape::input(Tensor value) { return Var(std::move(value), this, -1, run_); }

Var Tape::leaf(Tensor value) {
  if (scope_ != nullptr || recomputing_)
    throw InvalidArgument(
        "a leaf inside of a scope that is recomputed would be another in its second run; make it outside");
  return add_value(std::move(value), true);
}

Tensor Tape::gradient(const Var& leaf) const {
  for (auto& [id, gradient] : leaves_)
    if (leaf.tape_ == this && leaf.run_ == run_ - 1 && id == leaf.id_) return gradient;
  return {};
}

std::vector<Var> Tape::record(std::vector<Var> inputs, std::vector<Tensor> outputs, bool trains_parameters,
                              Backward backward, const char* function) {
  bool wanted = trains_parameters;
  for (const Var& x : inputs) {
    wanted = wanted || x.requires_grad();
    if (x.tape_ != nullptr && x.tape_ != this)
      throw InvalidArgument(fmt::format(
          "{}: a function of values on two tapes; compute with values of one tape, and give others as "
          "constants, by Var::value()",
          function));
    if (x.requires_grad() && x.run_ != run_)
      throw InvalidArgument(
          fmt::format("{}: a value from before the latest backward() or clear() of its tape: the operations "
                      "behind it are released; compute it again, or detach() it",
                      function));
  }
  std::vector<Var> values;
  if (!wanted || !training()) {
    for (Tensor& t : outputs) values.push_back(input(std::move(t)));
    return values;
  }
  const auto first = static_cast<int64_t>(values_.size());
  for (Tensor& t : outputs) values.push_back(add_value(std::move(t), false));
  if (scope_ != nullptr) return values;  // known to need a gradient, and nothing more
  for (Var& x : inputs)
    x.value_ = Tensor();  // the function keeps the memory that its backward reads, and no other
  nodes_.push_back({.kind = Node::Kind::operation,
                    .inputs = std::move(inputs),
                    .first_output = first,
                    .end_output = static_cast<int64_t>(values_.size()),
                    .backward = std::move(backward),
                    .function = function});
  return values;
}

void Tape::begin_call(std::shared_ptr<Unit> unit) {
  if (scope_ != nullptr) {
    scope_->calls.push_back({Forward::now(std::move(unit)), static_cast<int64_t>(values_.size()), false});
    return;
  }
  open_calls_.push_back(nodes_.size());
  nodes_.push_back({.kind = Node::Kind::begin_call,
                    .first_output = static_cast<int64_t>(values_.size()),
                    .call = Forward::now(std::move(unit))});
}

Tape::Scope::Call& Tape::Scope::innermost() {
  return *std::find_if(calls.rbegin(), calls.rend(), [](const Call& c) { return !c.ended; });
}

Unit* Tape::running_unit() const {
  if (scope_ != nullptr)
    for (auto call = scope_->calls.rbegin(); call != scope_->calls.rend(); ++call)
      if (!call->ended) return call->forward.unit.get();
  return open_calls_.empty() ? nullptr : nodes_[open_calls_.back()].call.unit.get();
}

void Tape::leave_out(const Forward& call) {
  // A second run adds no backward that is due, and so takes none away.
  if (!recomputing_) call.unit->drop_backward();
}

void Tape::end_call() {
  if (scope_ != nullptr) {
    Scope::Call& call = scope_->innermost();
    call.ended = true;
    // The second run leaves this call out, too, as below.
    if (call.first_value == static_cast<int64_t>(values_.size())) leave_out(std::exchange(call.forward, {}));
    return;
  }
  const Node& begin = nodes_[open_calls_.back()];
  const Node end{.kind = Node::Kind::end_call,
                 .first_output = begin.first_output,
                 .end_output = static_cast<int64_t>(values_.size()),
                 .call = begin.call};
  open_calls_.pop_back();
  if (end.first_output == end.end_output) {  // nothing inside has a gradient
    nodes_.pop_back();
    leave_out(end.call);
    return;
  }
  nodes_.push_back(end);
}

void Tape::cancel_call() noexcept {
  if (scope_ != nullptr) {
    Scope::Call& cancelled = scope_->innermost();  // whose forward the caller cancels
    for (Scope::Call* inside = &scope_->calls.back(); inside != &cancelled; --inside)
      if (inside->forward.unit && !recomputing_) inside->forward.give_up();
    scope_->calls.resize(static_cast<size_t>(&cancelled - scope_->calls.data()));
    return;
  }
  const size_t begin = open_calls_.back();
  open_calls_.pop_back();
  // Values keep their numbers: a Var of one of these that still exists has no operation any more.
  if (!recomputing_) give_up_from(begin + 1);
  nodes_.resize(begin);
}

void Tape::give_up_from(size_t begin) noexcept {
  for (size_t i = begin; i < nodes_.size(); ++i) {
    if (nodes_[i].kind == Node::Kind::end_call) nodes_[i].call.give_up();
    for (Forward& call : nodes_[i].hidden) call.give_up();
  }
}

void Tape::recompute(const std::function<void()>& forward, std::function<void()> again,
                     const std::vector<Var*>& offloaded) {
  if (!recording()) return forward();
  const auto first_value = static_cast<int64_t>(values_.size());
  Scope scope;
  scope_ = &scope;
  try {
    forward();
  } catch (...) {
    scope_ = nullptr;
    for (auto& call : scope.calls)
      if (call.forward.unit && !recomputing_) call.forward.give_up();
    throw;
  }
  scope_ = nullptr;
  Node node{.kind = Node::Kind::recompute,
            .first_output = first_value,
            .end_output = static_cast<int64_t>(values_.size()),
            .again = std::move(again),
            .states = std::move(scope.states)};
  if (node.first_output == node.end_output) return;  // nothing inside has a gradient, no call either
  for (auto& call : scope.calls)
    if (call.forward.unit) node.hidden.push_back(std::move(call.forward));
  if (!offloaded.empty() && !recomputing_) node.arguments = keep(offloaded);
  nodes_.push_back(std::move(node));
}

std::shared_ptr<detail::ScopeArguments> Tape::keep(const std::vector<Var*>& offloaded) {
  auto arguments = std::make_shared<detail::ScopeArguments>(offloaded);
  if (arguments->empty()) return nullptr;
  if (!copies_) copies_ = std::make_shared<detail::ArgumentStreams>();
  // The newest stay: backward begins with them. Those before are copied while the next scope computes.
  if (const auto leaving = leaving_.lock()) leaving->drop();
  if (const auto latest = latest_.lock()) latest->store(*copies_);
  leaving_ = std::exchange(latest_, arguments);
  return arguments;
}

void Tape::fetch(detail::ScopeArguments& arguments) {
  arguments.fetch(*copies_);
  arguments.wait();
  const auto before = std::find_if(nodes_.rbegin(), nodes_.rend(), [](const Node& n) { return n.arguments; });
  if (before != nodes_.rend()) before->arguments->fetch(*copies_);
}

void Tape::repeat(const void* state, const std::function<std::function<void()>()>& make_exchange) {
  if (scope_ != nullptr && !scope_->states.contains(state)) scope_->states.emplace(state, make_exchange());
}

void Tape::forget() {
  nodes_.clear();
  values_.clear();
  ++run_;
}

void Tape::clear() noexcept {
  if (running_ || scope_ != nullptr || !open_calls_.empty()) return;
  give_up_from(0);
  leaves_.clear();
  forget();
}

}  // namespace sherd::nn
