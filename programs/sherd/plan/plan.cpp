#include "plan.h"

#include <algorithm>

#include <fmt/format.h>

#include <sherd/train/report/timeline.h>

#include "train_gpt/model/trained_work.h"
#include "train_gpt/settings/optimizer_config.h"

namespace sherd::tools {
namespace {

using train_gpt::Forecast;

/// The run of a stage between the first and the last of a pipeline: blocks alone, those with experts where there are some.
/// Embedding and head have one token on each tensor-parallel rank.
train_gpt::TrainConfig stage_of(const PlanRequest& r) {
  train_gpt::TrainConfig c = r.config;
  if (r.pipeline == 1) return c;
  const auto files = std::make_shared<train_gpt::ModelFiles>();
  files->source = train_gpt::model_source(c);
  nn::ModelDescription& d = files->source.config.description;
  c.layers = d.layers = (d.layers + r.pipeline - 1) / r.pipeline;
  if (!d.windowed.empty()) d.windowed.resize(static_cast<size_t>(d.layers));
  d.mixture.dense_layers = 0;
  d.vocab = c.tp;
  c.mtp_weight = 0;
  c.files = files;
  return c;
}

/// Takes the figures of the whole model: a forecast has those of a stage.
void take_model(Plan& plan, const PlanRequest& r, const Forecast& first) {
  train_gpt::ParameterCount count = first.parameters;
  TokenWork work = first.work;
  if (r.listed) {
    count = count_parameters(*r.listed);
    work = token_work(*r.listed);
  } else if (r.pipeline > 1) {
    const auto model = train_gpt::build_model(r.config, {}, {});
    train_gpt::freeze_parameters(*model, r.config.freeze);
    count = train_gpt::count_parameters(r.config, *model);
    work = train_gpt::trained_work(r.config, *model);
  }
  plan.parameters = count.all;
  plan.active_parameters = count.active;
  plan.flops_per_token = training_flops(work, r.config.seq);
}

/// Bytes that a stage keeps of a microbatch between its forward and its backward: with recomputation the blocks' inputs.
int64_t kept_activations(const train_gpt::TrainConfig& stage, const RankForecast& rank) {
  if (stage.recompute == train_gpt::Recompute::none) return rank.by_class.at("activation");
  const int64_t rows = stage.rows_of_rank() / (stage.sequence_parallel ? stage.tp : 1);
  // nn::recompute(): at most three on the device.
  const int64_t inputs =
      stage.recompute == train_gpt::Recompute::offload ? std::min<int64_t>(3, stage.layers) : stage.layers;
  return inputs * rows * stage.dim * size_of(stage.precision);
}

/// Bytes that a stage of a pipeline keeps of the other microbatches in work, which are as many as the stages (1F1B; Narayanan et al., 2021).
int64_t kept_of_others(const PlanRequest& r, const RankForecast& rank) {
  return (std::min<int64_t>(r.pipeline, r.config.grad_accum) - 1) * kept_activations(stage_of(r), rank);
}

/// The forecast of a rank. What a pipeline's stage keeps of other microbatches leaves less memory for reuse.
Forecast forecast_of(const PlanRequest& r, int rank) {
  train_gpt::ForecastOptions options = forecast_options(r);
  Forecast f = train_gpt::forecast(stage_of(r), rank, options);
  const int64_t kept = r.pipeline > 1 ? kept_of_others(r, f.rank) : 0;
  if (kept == 0 || f.rank.peak_bytes + f.rank.by_class.at("slack") + kept <= options.device.keep_within)
    return f;
  options.device.keep_within = std::max<int64_t>(0, options.device.keep_within - kept);
  return train_gpt::forecast(stage_of(r), rank, options);
}

/// The first and the last stages wait for microbatches.
void add_pipeline(const PlanRequest& r, RankForecast& rank, StepTime& time) {
  if (r.pipeline == 1) return;
  const auto microbatches = static_cast<double>(r.config.grad_accum);
  const double wait = (r.pipeline - 1) / microbatches * (time.total - time.optimizer);
  time.exposed_communication += wait;
  time.total += wait;
  const int64_t kept = kept_of_others(r, rank);
  rank.peak_bytes += kept;
  rank.by_class["activation"] += kept;
}

}  // namespace

train_gpt::ForecastOptions forecast_options(const PlanRequest& r) {
  const bool gpu = r.config.device == DeviceKind::cuda;
  train_gpt::ForecastOptions options{.ranks_per_host = r.hardware.ranks_per_host};
  // Scratch memory of the kernels of GPUs is not known here.
  options.device = {.device = {.kernels = gpu ? KernelSet::reference : r.config.kernels,
                               .threads = static_cast<int>(r.config.threads)},
                    .total_memory = gpu ? r.hardware.memory_bytes : 0,
                    .keep_within = planned_limit(r.memory_bytes()),
                    .communicator_bytes = gpu ? r.hardware.communicator_bytes : 0};
  if (r.listed)
    options.build = [listed = r.listed](const train_gpt::TrainConfig&, const nn::TensorParallel&,
                                        const nn::ExpertParallel&,
                                        const nn::ContextParallel&) { return listed_model(*listed); };
  return options;
}

Plan make_plan(const PlanRequest& r, PlannedRanks which) {
  Plan plan;
  const auto take = [&](Forecast f) {
    StepTime time = play(f.rank.record, r.hardware);
    add_pipeline(r, f.rank, time);
    if (time.total > plan.time.total) plan.time = time;
    f.rank.record = {};
    plan.ranks.push_back(std::move(f.rank));
  };
  Forecast first = forecast_of(r, 0);
  take_model(plan, r, first);
  // Ranks return different bytes, and the one that returns most is slowest.
  if (first.rank.record.returned > 0) which = PlannedRanks::several;
  const std::vector<int> further = train_gpt::further_ranks(first, r.config.ranks, which);
  take(std::move(first));
  for (const int rank : further) take(forecast_of(r, rank));
  std::ranges::stable_sort(plan.ranks, std::greater<>(), &RankForecast::peak_bytes);

  const auto tokens = static_cast<double>(r.config.batch * r.config.seq);
  plan.tokens_per_s = tokens / plan.time.total;
  plan.flops_per_s =
      plan.tokens_per_s * plan.flops_per_token / static_cast<double>(r.config.ranks * r.pipeline);
  if (const auto peak = r.hardware.dense_peak(r.config.precision, r.config.tf32))
    plan.mfu = plan.flops_per_s / *peak;
  const RankForecast& most = plan.most_loaded();
  plan.fits = most.peak_bytes + most.by_class.at("slack") <= planned_limit(r.memory_bytes());
  plan.notes = r.notes;
  return plan;
}

std::string predicted_trace(const PlanRequest& r) {
  const Forecast f = forecast_of(r, 0);
  Timeline timeline{.title = "predicted step", .marks = {{"step", 0}}};
  const double end = play(f.rank.record, r.hardware, &timeline.records).total,
               memory = seconds_of_memory(f.rank.record, r.hardware);
  if (memory > 0)
    timeline.records.push_back({"planned", f.rank.record.streams.front(), "memory returned and taken again",
                                (end - memory) * 1e6, end * 1e6, WorkKind::copy});
  return chrome_trace(timeline);
}

}  // namespace sherd::tools
