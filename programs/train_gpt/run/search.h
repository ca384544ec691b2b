// Search for the fastest run that fits, by dry runs.
//
// A candidate is a value of each axis: replicas to recompute are its arrangement, layout to muon_working its traffic, master to
// offload its forms (kSearched). Its figures are those of its dry run, as `sherd plan` and train_gpt make it. Candidates are taken by
// ascending lower bound of their time. One is left out where a lower bound shows that it does not fit, or that it is not faster than
// the best so far by SearchOptions::tolerance. The bounds (search_bounds.h):
// - bytes 1: the mean over ranks of what is stored for the whole step (weights, masters, states), and of the gradients at the end of
//   the backward, or with several microbatches at any time.
// - bytes 2: the same beside the activations of one microbatch. They are those of a dry run of the shape: tp, context,
//   expert_parallel, sequences of a microbatch, recompute.
// - bytes 3: the peak of a candidate with the same arrangement and layout, less the bytes of the forms, and of the buffers of the
//   traffic, in which the two differ.
// - time 1: microbatches x the operations of the shape between its first and its last product, which are on one stream.
// - time 2: for each link, weights and gradients at its best rate, and microbatches x the shape's own collectives.
// - time 3: the record of a candidate of which forms alone differ, with optimizers' operations in the proportion of the forms' bytes.
//   Where prefetch differs, too: the busiest of its streams. Not after one that offloads.
// - time 4: rank 0 alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/train/plan/hardware_profile.h>
#include <sherd/train/plan/step_time.h>

#include "train_gpt/run/forecast.h"
#include "train_gpt/run/search_axes.h"

namespace train_gpt {

struct SearchOptions {
  sherd::HardwareProfile hardware = {};
  ForecastOptions forecast = {};  // keep_within is set
  /// Candidates that are faster by less than this part are not looked for. Of those that are slower by less the one with the
  /// fewest changes comes first.
  double tolerance = 0.005;
  /// Operations of dry runs, at most; SearchResult::bound then says what was not ruled out.
  int64_t most_work = 6'000'000;
  /// Bounds leave out what is not faster than so many others.
  size_t wanted = 1;
  int64_t host_bytes = 0;                 // of a rank, that what is offloaded must fit in; 0: no limit
  std::function<void()> on_dry_run = {};  // called after each
};

struct Candidate {
  TrainConfig config;
  sherd::StepTime time;               // of the slowest planned rank
  int64_t bytes = 0, host_bytes = 0;  // of the rank that takes most, slack included
  bool fits = false;
  bool same_bits = true;             // as the base
  std::vector<std::string> changes;  // flags that differ from the base
};

struct SearchResult {
  /// Those that had a dry run: what fits by time, then the rest by bytes. The first has the figures of all planned ranks; slower ones may
  /// have those of rank 0 alone.
  std::vector<Candidate> candidates;
  int64_t considered = 0, too_large = 0;  // arrangements; those that do not fit by a bound
  double bound = 0;                       // seconds: no candidate that fits is faster
  int64_t runs = 0;                       // dry runs, but those that an earlier search made
  bool ended_early = false;               // by the budget of dry runs
  std::string refused = {};               // why a candidate could not be run; the first reason
  bool fits() const { return !candidates.empty() && candidates.front().fits; }
};

/// Returns the first candidates that fit, without those that have all changes of an earlier one, and more.
std::vector<Candidate> distinct(const std::vector<Candidate>& candidates, size_t most);

/// The searches of one base, which share their dry runs. One thread; the same calls give the same results everywhere.
class Search {
 public:
  /// @throws as build_model().
  Search(TrainConfig base, SearchOptions options);
  ~Search();

  /// @pre the names in Constraints::fixed are settings'.
  /// @param most_work in place of SearchOptions::most_work; 0: that
  [[nodiscard]] SearchResult run(const Constraints& constraints, int64_t most_work = 0);
  /// Tries every candidate.
  [[nodiscard]] SearchResult enumerate(const Constraints& constraints);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the fastest runs that fit and leave ranks, layout, prefetch and Muon's exchange as they are, at most `most`, by time:
/// one with the bits of the base, where there is one. Where nothing fits: the nearest, if any can be run. @param limits fixes further settings
std::vector<Candidate> remedies(const TrainConfig& base, SearchOptions options, Constraints limits,
                                size_t most);

/// Returns "351.2 MiB", from 10,000 MiB on in GiB.
std::string size_text(int64_t bytes);
/// Returns "12.1 GiB and 1.5 GiB on the host".
std::string memory_text(const Candidate& candidate);
/// Returns how a run changes: "fits with --recompute blocks: 12.1 GiB, 351.20 ms a step, the same bits".
std::string in_words(const Candidate& candidate);

/// Returns the options of a search on this machine: the profile of the rank's GPU, or of a CPU; usable_memory(); on GPUs an equal part
/// of the host's memory for what is offloaded.
SearchOptions search_options(const sherd::RankContext& rank);

}  // namespace train_gpt
