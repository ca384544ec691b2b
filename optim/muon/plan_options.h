// Options of a Muon plan.
#pragma once

#include <cstdint>

#include <sherd/optim/muon/muon_options.h>

namespace sherd {

struct PlanOptions {
  MatrixMode mode = MatrixMode::automatic;
  bool allow_inexact = false;
  int steps = 5;
  Orthogonalizer method = Orthogonalizer::newton_schulz;
  IterationForm form = IterationForm::standard;
  int restarts = 0;
  double fraction = 1;  // of the rows
  MatrixTensorMode tensor = MatrixTensorMode::duplicated;
  int64_t payload_bytes = 4;  // per element
  PlanCosts costs = {};
};
/// Returns the part of the options that a plan depends on.
[[nodiscard]] PlanOptions plan_options(const MuonOptions& options);
/// Returns the part of them that does not concern the iteration.
[[nodiscard]] MatrixPlanOptions matrix_plan_options(const PlanOptions& options);

}  // namespace sherd
