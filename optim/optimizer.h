// The optimizer of a sharded model: AdamW and Muon side by side, by the routing table.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/routing.h>

namespace sherd {

struct OptimizerOptions {
  AdamWOptions adamw;
  MuonOptions muon;
  /// Applied to parameters of two or more dimensions that are no biases; the others do not decay.
  double weight_decay = 0;
};

/// One rank's thread uses it; collective calls in the same order on every rank.
class Optimizer {
 public:
  /// @param root sharded by fully_shard(); outlives the optimizer. `routing` from route() of the same root.
  Optimizer(Module& root, const Routing& routing, const OptimizerOptions& options);

  /// Queues one update on the compute stream, after the pending reductions, and starts the next step's
  /// gradients from zero. Whole parameters are refreshed when they are next used.
  /// @throws InvalidArgument when no last backward has finished since the previous step.
  void step(double lr);
  /// Steps taken, those before a resume included.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// Every state tensor, in routing order.
  std::vector<StateTensor> state() const;
  /// Every counter, in routing order.
  std::vector<StateCounter> counters() const;
  /// The Muon half, with its plan and its report (it exists without matrices, too).
  Muon& muon() const { return *muon_; }

 private:
  ShardRuntime& runtime_;
  std::set<ParamGroup*> copied_;  // AdamW writes the model's weights of all their parameters
  std::unique_ptr<AdamW> adamw_;
  std::unique_ptr<Muon> muon_;
  int64_t steps_ = 0;
};

}  // namespace sherd
