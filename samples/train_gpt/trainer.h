// The training loop of one rank.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sherd/checkpoint/resume.h>
#include <sherd/comm/launcher.h>
#include <sherd/optim/clip.h>
#include <sherd/optim/optimizer.h>

#include "config.h"
#include "data.h"
#include "model.h"
#include "report.h"

namespace train_gpt {

class Trainer {
 public:
  /// Builds the model, shards it, loads --init-weights and --resume. Collective. `windows` is null when
  /// nothing is trained.
  Trainer(sherd::RankContext& rank, const TrainConfig& config, std::shared_ptr<const Windows> windows);

  /// The routing table, as printed at start.
  std::string routing() const { return routing_.format(); }
  /// Lines for people about the sharding: mesh, strategy, units, rows cut or padding added by the
  /// layout.
  std::string describe() const;
  /// Muon's plans (--explain-plan).
  std::string explain_plan() const { return optimizer_ ? optimizer_->muon().explain() : ""; }

  /// Steps done, those before a resume included.
  int64_t step() const { return step_; }
  /// Where --resume went on from, if it did.
  const std::optional<sherd::Resumed>& resumed() const { return resumed_; }
  /// Lines on what differs from the run that saved the checkpoint and changes what is trained: data, seed.
  std::vector<std::string> differences() const;
  /// Trains the next step.
  StepResult train_step();
  /// Mean loss over all held-out windows; NaN when there are none.
  double evaluate();
  /// `count` bytes after `prompt`, drawn at temperature 0.7 by a generator seeded with --seed. Equal on all
  /// ranks.
  std::string sample(const std::string& prompt, int64_t count);
  /// As --export-weights and --export-dtype say. Collective.
  void export_weights();
  /// What a checkpoint of this moment holds besides tensors.
  sherd::TrainingState training_state() const;
  /// What this rank writes into a checkpoint.
  std::vector<sherd::LocalTensor> checkpoint_tensors();
  const std::shared_ptr<sherd::Communicator>& world() const { return rank_.world; }
  /// Of every rank, in rank order; collective.
  std::vector<RankMemory> memory();
  /// What one rank would hold under no_shard: parameters, gradients, optimizer states.
  RankMemory replicated_memory();

 private:
  struct Batch {
    sherd::Tensor inputs, targets;
  };
  Batch load(const std::vector<int64_t>& windows);
  /// Over the ranks that have different data.
  double data_sum(double value);
  /// Over all ranks.
  int64_t all_max(int64_t value);

  void resume();
  /// Names matrices whose gradients were not finite, on the rank that saw them.
  void warn_about_skipped_updates();

  /// Brings the step's new weights to where they rest, and counts it to the coming step.
  void sync_parameters();

  sherd::RankContext& rank_;
  const TrainConfig& config_;
  std::shared_ptr<const Windows> windows_;
  sherd::DeviceMesh mesh_;
  std::shared_ptr<sherd::Communicator> data_;     // the ranks that have different data
  std::optional<sherd::DeviceMesh> expert_mesh_;  // when there are experts
  Gpt model_;
  sherd::Routing routing_;
  std::optional<sherd::Optimizer> optimizer_;
  std::optional<sherd::Resumed> resumed_;
  int64_t step_ = 0;       // done
  int64_t sequences_ = 0;  // consumed by all ranks together
  uint64_t seed_ = 0;
  std::set<std::string> zeros_seen_;  // matrices whose update was zero once
  sherd::CommCounts carried_;         // of the coming step, issued already
};

}  // namespace train_gpt
