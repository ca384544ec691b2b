#include <sherd/nn/module.h>

namespace sherd::nn {
namespace detail {

ModuleCall::ModuleCall(const std::shared_ptr<Unit>& unit, Tape* tape)
    : unit_(unit.get()), tape_(tape != nullptr && tape->recording() ? tape : nullptr) {
  if (unit_ == nullptr) return;
  if (tape_ == nullptr) {
    unit_->pre_forward(false);
  } else {
    unit_->pre_recorded_forward();
    tape_->begin_call(unit);
  }
}

void ModuleCall::end() {
  if (unit_ == nullptr) return;
  unit_->post_forward();
  if (tape_ != nullptr) tape_->end_call();
  unit_ = nullptr;
}

ModuleCall::~ModuleCall() {
  if (unit_ == nullptr) return;
  unit_->cancel_forward();
  if (tape_ != nullptr) tape_->cancel_call();
}

}  // namespace detail

Var call(sherd::Module& module, const Var& x) {
  Tape* const tape = x.tape();
  const bool recorded = tape != nullptr && tape->recording() && module.training();
  Tensor y = module(x.value());
  if (!recorded) return tape != nullptr ? tape->input(std::move(y)) : Var(std::move(y));
  return tape->record({x}, {y}, true, [&module, y](const BackwardCall& call) -> std::vector<Gradient> {
    return {module.run_backward(call.output().tensor(y))};
  })[0];
}

}  // namespace sherd::nn
