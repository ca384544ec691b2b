#include <sherd/nn/module.h>

namespace sherd::nn {
namespace detail {

ModuleCall::ModuleCall(const ModuleBase& module, Tape* tape) : unit_(module.unit().get()) {
  // Arguments without a tape, inside of a forward that is recorded: parameters train all the same.
  if (tape == nullptr && unit_ != nullptr) tape = dynamic_cast<Tape*>(unit_->recorder());
  if (tape != nullptr && module.is_root() && !module.training()) evaluates_.emplace(*tape);
  tape_ = tape != nullptr && tape->training() ? tape : nullptr;
  if (unit_ == nullptr) return;
  precision_ = unit_->precision();
  if (tape_ == nullptr) {
    unit_->pre_forward(ForwardKind::evaluation);
  } else {
    unit_->pre_forward(tape_->recomputing() ? ForwardKind::recomputed : ForwardKind::recorded,
                       Tape::kHowToDrop);
    tape_->begin_call(module.unit());
    around_ = unit_->exchange_recorder(tape_);
  }
}

void ModuleCall::end() {
  if (unit_ == nullptr) return;
  unit_->post_forward();
  if (tape_ != nullptr) {
    unit_->exchange_recorder(around_);
    tape_->end_call();
  }
  unit_ = nullptr;
}

ModuleCall::~ModuleCall() {
  if (unit_ == nullptr) return;
  if (tape_ != nullptr) {
    unit_->exchange_recorder(around_);
    tape_->cancel_call();
  }
  unit_->cancel_forward();  // what was due before the call is so again
}

}  // namespace detail
}  // namespace sherd::nn
