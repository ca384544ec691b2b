// Model named by --model: a Hugging Face folder, or a published shape.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/checkpoint/file_copies.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/train/report/flops.h>
#include <sherd/train/text/tokenizer.h>

#include <sherd/nn/hf/model_folder.h>
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

struct ModelSource {
  sherd::hf::ModelConfig config;
  std::filesystem::path folder;  // empty: a preset, which has no weights, or a missing folder
  /// Text of config.json: the folder's, or the preset's as transformers would write it.
  std::string text;
  /// `folder` holds another config.json than this one, which is a checkpoint's.
  bool folder_differs = false;
};

/// @throws sherd::InvalidArgument when `model` is neither, or its config.json cannot be followed;
/// sherd::IoError.
ModelSource model_source(const std::string& model);
/// Returns the source of --model, which is given: as read before the run, else as described by
/// config.model_text if parse_config() has set that, else as it is now.
ModelSource model_source(const TrainConfig& config);

/// Returns whether `model` is neither an existing folder nor a published shape: a folder of which only the
/// name is left.
bool is_absent_folder(const std::string& model);

/// Files of --model's folder that a run needs besides its first weights, read before there are ranks. A
/// missing or unusable folder is thus reported at the start, not after days of training.
struct ModelFiles {
  ModelSource source;
  /// For --export-hf; none where nothing is exported, or rank 0 is in another process.
  std::optional<sherd::ExportOptions> exported;
  /// For text of --sample; null: tokens are shown as numbers.
  std::shared_ptr<const sherd::Tokenizer> tokenizer;
  /// Tokens that end the text of --sample.
  std::vector<int32_t> end_of_text;
  /// Tokens of --prompt; empty without it, or where rank 0 is in another process.
  std::vector<int32_t> prompt;
};

/// The same settings with TrainConfig::files, where there is a --model. @throws sherd::InvalidArgument as
/// model_source(), sherd::IoError and sherd::CorruptCheckpoint for what cannot be read of it.
TrainConfig with_model_files(TrainConfig config);

/// Sets what --model decides: sizes, experts and, unless it was given, the weight of the balancing loss.
void take_sizes(TrainConfig& config, const ModelSource& source, bool balance_given);

/// Byte values, the vocabulary without --model.
constexpr int64_t kBytes = 256;
/// The model that build_model() builds: without --model the byte GPT; else as config.json describes it, with what settings of
/// training decide.
sherd::nn::ModelDescription description_of(const TrainConfig& config);

/// Returns the number of the model's tokens.
int64_t vocabulary(const TrainConfig& config);

/// Builds the model of description_of(); parameters are only described.
std::unique_ptr<sherd::nn::CausalModel> build_model(const TrainConfig& config,
                                                    const sherd::nn::TensorParallel& tp,
                                                    const sherd::nn::ExpertParallel& ep,
                                                    const sherd::nn::ContextParallel& context = {});

using ModelBuilder = std::function<std::unique_ptr<sherd::nn::CausalModel>(
    const TrainConfig& config, const sherd::nn::TensorParallel& tp, const sherd::nn::ExpertParallel& ep,
    const sherd::nn::ContextParallel& context)>;

/// Returns the products of one token of the model, for counting operations.
sherd::TokenWork token_work(const TrainConfig& config);

/// Returns whether --init-weights names a folder of adapters for --model, whose other weights are those of
/// its folder.
bool begins_with_adapters(const TrainConfig& config);

/// Returns the source of first weights, except adapters: --init-weights or --model's folder; empty: they are
/// random, or a checkpoint's.
std::filesystem::path first_weights(const TrainConfig& config);

/// Returns the files that a process reads of first_weights(), adapters and the config.json that it follows,
/// for require_same_copies(). Formatting and order of keys do not count. @throws as import_weights() for what
/// cannot be read.
std::vector<sherd::FileCopy> model_copies(const TrainConfig& config);

/// Freezes the parameters that --freeze names; before fully_shard(). @throws sherd::InvalidArgument when it names none, or
/// leaves none to train.
void freeze_parameters(sherd::ModuleBase& model, const std::string& pattern);

/// Loads the first weights, of --init-weights, --model's folder or both, if they come from one of these. Collective.
/// @returns LoadReport::notes, and in `ignored` the stored tensors that are not part of the model.
sherd::LoadReport load_first_weights(sherd::nn::CausalModel& model, const TrainConfig& config);

/// Returns the adapters of the flags; of rank 0 without any.
sherd::nn::LoraOptions lora_options(const TrainConfig& config);

/// Exports as --export-hf requests: like the imported folder or, for a model that began at random, as
/// transformers would write it, in the dtype of config.json [f32]. Adapters become part of the weights, here
/// and in the model. Collective. @returns as sherd::export_weights().
bool export_folder(sherd::nn::CausalModel& model, const TrainConfig& config, bool rank_0);

}  // namespace train_gpt
