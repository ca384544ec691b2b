// The training loop of one rank.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sherd/checkpoint/resume.h>
#include <sherd/comm/launcher.h>
#include <sherd/optim/averaged.h>
#include <sherd/optim/clip.h>
#include <sherd/optim/optimizer.h>
#include <sherd/train/data/token_windows.h>
#include <sherd/train/guards/repeat_step.h>
#include <sherd/train/guards/replica_check.h>
#include <sherd/train/guards/skip_limit.h>
#include <sherd/train/guards/stop_agreement.h>
#include <sherd/train/report/flops.h>
#include <sherd/train/report/memory_report.h>
#include <sherd/train/report/step_result.h>
#include <sherd/train/saving/saving.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/model/trained_work.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Calls and bytes of `after` that `before` does not have.
sherd::CommCounts minus(sherd::CommCounts after, const sherd::CommCounts& before);

/// A step that is queued. Its figures come to host memory when the device has done it.
struct PendingStep {
  using Clock = std::chrono::steady_clock;

  sherd::StepResult result;  // what is known when the step is issued
  Clock::time_point issued;
  std::shared_ptr<Clock::time_point> reduced, updated;  // when the device had the gradients, and the weights
  std::shared_ptr<const sherd::GradientStats> stats;
  sherd::Tensor loss, words;  // f64 [1], with multi-token prediction [2]; i64 [4], see reduced_words()
  std::vector<sherd::Tensor> statuses;  // of Muon's matrices
  sherd::Tensor skipped;                // i64 [1], steps skipped so far
  int64_t sequences = 0;                // of the data that came before it
  int64_t learned = 0;                  // targets that it learns, on all ranks
  sherd::Event done;
};

/// Sequences of the run that a step used, counted from 0.
struct SequenceRange {
  int64_t first = 0, count = 0;
};

class Trainer {
 public:
  /// Builds the model, shards it, loads --init-weights and --resume. Collective. `windows` is null when
  /// nothing is trained. `build`: makes another model than build_model() does.
  Trainer(sherd::RankContext& rank, const TrainConfig& config,
          std::shared_ptr<const sherd::TokenWindows> windows, const ModelBuilder& build = build_model);

  /// The routing table, as printed at start.
  std::string routing() const { return routing_.format(); }
  /// Human-readable lines about the sharding: mesh, strategy, units, rows cut or padding added by the
  /// layout.
  std::string describe() const;
  /// Muon's and SOAP's plans (--explain-plan).
  std::string explain_plan() const;

  /// Returns the products of one token in training, for counting operations by formula.
  sherd::TokenWork work() const;
  double flops_per_token() const;
  ParameterCount parameters() const;
  /// Muon's plans, by team; none without an optimizer.
  std::vector<sherd::MatrixPlan> muon_plans() const;
  /// Steps issued, those before a resume included.
  int64_t step() const { return step_; }
  /// "epoch 1.50": of the data, all runs together.
  std::string progress_in_data() const { return windows_->progress(sequences_); }
  /// The checkpoint that --resume has loaded, if any.
  const std::optional<sherd::Resumed>& resumed() const { return resumed_; }
  /// Lines on what differs from the run that saved the checkpoint and changes what is trained: data, seed.
  std::vector<std::string> differences() const;
  /// Queues the next step, and waits for nothing but, with experts, for the counts of the rows they get. At
  /// most one step that is not collected may be under way before it.
  PendingStep issue_step();
  /// Waits for the step and returns what it did. In the order of issue.
  sherd::StepResult collect(PendingStep step);
  /// Returns whether the next step can be the last that --max-skipped-steps allows: it must be collected
  /// before another is issued. The same on all ranks.
  bool next_skip_is_the_last() const { return skips_.next_is_the_last(); }
  /// Returns the reason why no further step is allowed: --max-skipped-steps consecutive steps were skipped;
  /// empty before that. The same on all ranks.
  std::string too_many_skipped() const { return skips_.reached(); }
  /// Both: trains the next step.
  sherd::StepResult train_step() { return collect(issue_step()); }
  /// Has every step from now on ask all ranks whether they wish to stop.
  void listen_to(std::shared_ptr<sherd::StopAgreement> stop) { stop_ = std::move(stop); }
  /// Trains the next step twice from the same state, see repeat_step(); no step may be under way. What the step did
  /// is that of the second time.
  struct Verified {
    sherd::StepResult result;
    sherd::RepeatedStep repeated;
  };
  Verified verify_step();
  /// Compares weights, optimizer states and buffers that several ranks hold, between steps. Collective.
  sherd::ReplicaCheck check_replicas();
  /// Returns the sequences of the step collected last.
  SequenceRange collected_sequences() const { return {collected_sequences_, config_.batch}; }
  /// Returns whether every weight on all ranks is finite. Collective.
  bool weights_are_finite();
  struct Evaluation {
    double loss = 0;                   // mean over tokens; of sets the mean by their weights
    sherd::SetLosses sets{};           // of --eval-data
    std::optional<double> loss_ema{};  // the same of the averages of --ema
  };
  /// Loss over held-out windows, of each set as many as --eval-windows says; NaN without any. Collective.
  Evaluation evaluate();
  /// Puts the averages in the place of the weights until the end (--use-ema). Collective.
  void use_averages();
  /// Equal for runs whose evaluations read the same windows with the same weights.
  std::string evaluation_data() const;
  /// Returns the prompt, not empty, and `count` tokens behind it, drawn as --temperature and --top-p say by a generator
  /// seeded with --seed. Equal on all ranks; `made` is given each token as soon as it is drawn. A --model keeps keys and
  /// values in a cache.
  std::vector<int32_t> generate(std::vector<int32_t> prompt, int64_t count,
                                const std::function<void(int32_t)>& made = {});
  /// Exports weights as --export-weights and --export-dtype request. Collective. @returns as
  /// sherd::export_weights().
  bool export_weights();
  /// Exports adapters as --export-adapter requests. Collective. @returns as sherd::export_weights().
  bool export_adapters();
  /// Exports a folder as --export-hf requests. Collective. @returns as sherd::export_weights().
  bool export_folder();
  /// Tensors of the first weights' files that are not the model's, by name.
  const std::vector<std::string>& ignored_tensors() const { return first_weights_.ignored; }
  /// Lines on what else of those files is not read or not followed.
  const std::vector<std::string>& weights_notes() const { return first_weights_.notes; }
  /// Returns the training state that a checkpoint would hold now besides tensors.
  sherd::TrainingState training_state() const;
  /// For checkpoints of this run; the trainer outlives it.
  sherd::SavedRun saved_run();
  const std::shared_ptr<sherd::Communicator>& world() const { return rank_.world; }
  /// Returns the memory of every rank, in rank order; collective.
  std::vector<sherd::RankMemory> memory() { return sherd::rank_memory(*rank_.world); }
  /// Returns the memory of one rank under no_shard: parameters, gradients, optimizer states.
  sherd::RankMemory replicated_memory();

 private:
  struct Batch {
    sherd::Tensor inputs, targets;
    sherd::nn::Documents documents;  // of --sft
    sherd::nn::NextTokens next;      // tokens and targets alone, with --mtp-weight
  };
  Batch load(const std::vector<int64_t>& windows);
  /// Rows of the next step, on all ranks and in all microbatches: the same figures on every rank, without a
  /// collective.
  struct StepRows {
    int64_t learned = 0;  // targets that are learned
    int64_t places = 0;   // places that are not padding
  };
  StepRows rows_of_step() const;
  Evaluation evaluate_weights();
  /// Mean loss over the tokens of these windows; NaN without any. Collective.
  double mean_loss(const std::vector<int64_t>& windows);
  /// Over the ranks that have losses of different tokens.
  double data_sum(double value);

  void resume();
  /// Says on rank 0 that a step was skipped.
  void count_skipped(sherd::StepResult& result, const PendingStep& step);
  /// Names matrices whose gradients were not finite, on the rank that saw them; of a step that was skipped as a
  /// whole the first few.
  void warn_about_skipped_updates(const PendingStep& step, bool whole_step);

  /// Copies the step's new weights to the stored weights, and counts the time to the next step.
  void sync_parameters();

  sherd::RankContext& rank_;
  const TrainConfig& config_;
  std::shared_ptr<const sherd::TokenWindows> windows_;
  sherd::DeviceMesh mesh_;
  std::shared_ptr<sherd::Communicator> data_;     // the ranks that have different sequences
  std::shared_ptr<sherd::Communicator> losses_;   // those that have losses of different tokens
  std::optional<sherd::DeviceMesh> expert_mesh_;  // when there are experts
  std::unique_ptr<sherd::nn::CausalModel> built_;
  sherd::nn::CausalModel& model_;
  sherd::LoadReport first_weights_;
  sherd::nn::Tape tape_;
  sherd::Routing routing_;
  std::optional<sherd::Optimizer> optimizer_;
  std::optional<sherd::Averaged> averaged_;
  sherd::Muon* muon_ = nullptr;  // of *optimizer_: Muon, or the one inside of NorMuon
  std::optional<sherd::Resumed> resumed_;
  int64_t step_ = 0;                                       // issued
  int64_t sequences_ = 0;                                  // consumed by all ranks together
  std::optional<PendingStep::Clock::time_point> updated_;  // the end of the step collected last
  uint64_t seed_ = 0;
  std::set<std::string> zeros_seen_;  // matrices whose update was zero once
  sherd::SkipLimit skips_;            // --max-skipped-steps
  std::shared_ptr<sherd::StopAgreement> stop_;
  int64_t collected_sequences_ = 0;
  sherd::CommCounts carried_;      // of the coming step, issued already
  sherd::ArrivalTotals arrivals_;  // up to the end of the step collected last
};

}  // namespace train_gpt
