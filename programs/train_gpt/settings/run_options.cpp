#include "train_gpt/settings/run_options.h"

#include <vector>

#include <fmt/format.h>

#include <sherd/checkpoint/files/save_lock.h>
#include <sherd/train/saving/output_files.h>
#include <sherd/train/settings/saved_settings.h>

#include "train_gpt/settings/misfit.h"

namespace train_gpt {

sherd::Schedule schedule_of(const TrainConfig& config) {
  return {.lr = config.lr,
          .warmup = config.warmup,
          .decay = config.lr_schedule,
          .steps = config.steps,
          .least = config.min_lr ? *config.min_lr / config.lr : sherd::Schedule().least,
          .decay_steps = config.decay_steps};
}

sherd::SaveFolder save_folder(const TrainConfig& config) {
  return {
      .save = config.save,
      .resume = config.resume,
      .parts = config.resume_parts,
      .overwrite = config.overwrite,
      .differences = [config](const sherd::TrainingState& saved) { return run_differences(saved, config); }};
}

sherd::SavingOptions saving_options(const TrainConfig& config) {
  return {.folder = save_folder(config),
          .every = config.save_every,
          .keep = config.keep,
          .async = config.async_save,
          .on_failure = config.save_failure,
          .last_step = config.last_step()};
}

sherd::TraceOptions trace_options(const TrainConfig& config) {
  return {.trace = config.trace,
          .timeline = config.timeline,
          .steps = config.trace_steps,
          .last_step = config.last_step(),
          .title = fmt::format("train_gpt, {} rank{}, {}, {}", config.ranks, config.ranks == 1 ? "" : "s",
                               word_of(*config.strategy), word_of(config.optimizer))};
}

sherd::Existing existing_export(const TrainConfig& config) {
  using sherd::Existing;
  if (!config.trains()) return Existing::accept_equal;
  if (config.resume.empty() || config.resume_parts != sherd::ResumeParts::all) return Existing::refuse;
  // An earlier start of `sherd run` may have exported what it could not save.
  const bool restart = sherd::LockHolder::of_this_process().start > 1;
  if (restart && sherd::goes_on_in_save_folder(save_folder(config))) return Existing::accept_equal;
  try {
    const int64_t step = sherd::saved_training(config.resume).training.step;
    return step >= config.last_step() ? Existing::accept_equal : Existing::refuse;
  } catch (const sherd::Error&) {  // loading it throws the reason
    return Existing::refuse;
  }
}

bool rank_0_is_here(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  const bool joins_a_job =
      config.comm != sherd::BackendKind::local && config.bootstrap != sherd::Bootstrap::none;
  return !joins_a_job || sherd::rank_0_is_here(get);
}

void check_outputs(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  using Kind = sherd::OutputPath::Kind;
  std::vector<sherd::OutputPath> outputs = {{"--save", config.save, Kind::folder}};
  if (rank_0_is_here(config, get)) {
    outputs.push_back({"--metrics", config.metrics, Kind::stream});
    outputs.push_back({"--log-dir", config.log_dir, Kind::folder});
    outputs.push_back({"--loss-svg", config.loss_svg, Kind::file});
    outputs.push_back({"--trace", config.trace, Kind::file});
    outputs.push_back({"--timeline", config.timeline, Kind::file});
    const bool exports =
        !config.export_weights.empty() || !config.export_hf.empty() || !config.export_adapter.empty();
    const sherd::Existing existing = exports ? existing_export(config) : sherd::Existing::refuse;
    outputs.push_back({"--export-weights", config.export_weights, Kind::weights, existing});
    outputs.push_back({"--export-hf", config.export_hf, Kind::weights_folder, existing});
    outputs.push_back({"--export-adapter", config.export_adapter, Kind::weights_folder, existing});
  }
  sherd::check_outputs(outputs);
}

}  // namespace train_gpt
