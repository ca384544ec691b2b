#include <sherd/optim/optimizer.h>

namespace sherd {

Optimizer::Optimizer(Module& root, const Routing& routing, const OptimizerOptions& options)
    : runtime_(runtime_of(root)) {
  std::vector<AdamW::Item> adamw;
  std::vector<Muon::Item> muon;
  std::set<ParamGroup*> with_muon;
  for (auto& r : routing.routes)
    if (r.algorithm == Algorithm::muon) with_muon.insert(&r.param.group());
  for (auto& r : routing.routes) {
    const double decay = r.decays ? options.weight_decay : 0;
    if (r.algorithm == Algorithm::muon) {
      muon.push_back({r.param, decay});
    } else {
      const bool alone = !with_muon.contains(&r.param.group());
      adamw.push_back({r.param, decay, alone});
      if (alone) copied_.insert(&r.param.group());
    }
  }
  adamw_ = std::make_unique<AdamW>(runtime_.device(), std::move(adamw), options.adamw);
  muon_ = std::make_unique<Muon>(runtime_.device(), std::move(muon), options.muon);
}

void Optimizer::step(double lr) {
  runtime_.require_gradients("Optimizer::step()");
  runtime_.wait_gradients();
  runtime_.begin_weights_change();
  Stream& stream = runtime_.device().compute();
  ++steps_;
  adamw_->step(stream, lr);
  for (ParamGroup* g : copied_) g->copies_written();
  muon_->step(stream, lr);
  runtime_.weights_changed();
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> all;
  adamw_->collect(all);
  muon_->collect(all);
  return all;
}

std::vector<StateCounter> Optimizer::counters() const {
  std::vector<StateCounter> all;
  adamw_->collect(all);
  return all;
}

}  // namespace sherd
