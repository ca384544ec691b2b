#include <sherd/optim/muon/plan_options.h>

namespace sherd {

PlanOptions plan_options(const MuonOptions& o) {
  PlanOptions p;
  p.mode = o.mode;
  p.allow_inexact = o.allow_inexact;
  p.steps = static_cast<int>(o.orthogonalize.steps.size());
  p.method = o.orthogonalize.method;
  p.form = o.orthogonalize.form;
  p.restarts = static_cast<int>(o.orthogonalize.restarts.size());
  p.fraction = o.fraction;
  p.tensor = o.tensor;
  p.payload_bytes = size_of(o.payload);
  p.costs = o.costs;
  return p;
}

MatrixPlanOptions matrix_plan_options(const PlanOptions& o) {
  return {
      .mode = o.mode, .allow_inexact = o.allow_inexact, .payload_bytes = o.payload_bytes, .costs = o.costs};
}

}  // namespace sherd
