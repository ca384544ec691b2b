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
    unit_->pre_forward(false);
  } else {
    tape_->recomputing() ? unit_->pre_recomputed_forward() : unit_->pre_recorded_forward(Tape::kHowToDrop);
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

namespace {

// A module keeps nothing for a backward that does not come.
class Evaluation {
 public:
  Evaluation(ModuleBase& module, bool on) : module_(on ? &module : nullptr) {
    if (module_ != nullptr) module_->set_training(false);
  }
  ~Evaluation() {
    if (module_ != nullptr) module_->set_training(true);
  }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  ModuleBase* module_;
};

}  // namespace

Var call(sherd::Module& module, const Var& x) {
  Tape* tape = x.tape();
  if (tape == nullptr)
    for (auto& [name, p] : module.named_parameters())
      if (tape == nullptr) tape = dynamic_cast<Tape*>(p.recorder());
  const bool trains = tape != nullptr && tape->training() && module.training();
  // In the first run of a scope that is recomputed it is noted that the result has a gradient, and no more.
  const bool kept = trains && tape->recording();
  const Evaluation evaluation(module, !kept && module.training());
  Tensor y = module(x.value());
  if (!trains) return tape != nullptr ? tape->input(std::move(y)) : Var(std::move(y));
  return tape->record({x}, {y}, true, [&module, y](const BackwardCall& call) -> std::vector<Gradient> {
    return {module.run_backward(call.output().tensor(y))};
  })[0];
}

}  // namespace sherd::nn
