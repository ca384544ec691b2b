// What --model names: a folder of Hugging Face, or a published shape.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <sherd/checkpoint/stored_folder.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/train/flops.h>

#include "config.h"
#include "hf/model_folder.h"

namespace train_gpt {

struct ModelSource {
  hf::ModelConfig config;
  std::filesystem::path
      folder;  // empty: a preset, which has no weights, or a folder that is not there any more
  /// Of config.json: the folder's, or as transformers would write the preset's.
  std::string text;
  /// `folder` holds another config.json than this one, which is a checkpoint's.
  bool folder_differs = false;
};

/// @throws sherd::InvalidArgument when `model` is neither, or its config.json cannot be followed;
/// sherd::IoError.
ModelSource model_source(const std::string& model);
/// Of the run's --model, as config.model_text describes it if parse_config() has set that, so that it stays
/// the same whatever becomes of the folder.
ModelSource model_source(const TrainConfig& config);

/// Whether `model` is neither there nor a published shape: a folder from which only the name is left.
bool is_absent_folder(const std::string& model);

/// Sets what --model decides: sizes, experts and, unless it was given, the weight of the balancing loss.
void take_sizes(TrainConfig& config, const ModelSource& source, bool balance_given);

/// Tokens that the model knows: bytes without --model.
int64_t vocabulary(const TrainConfig& config);

/// --model's, or the byte model; parameters are only described.
std::unique_ptr<sherd::nn::CausalModel> build_model(const TrainConfig& config,
                                                    const sherd::nn::TensorParallel& tp,
                                                    const sherd::nn::ExpertParallel& ep);

/// What a token of the model computes, for counting operations.
sherd::TokenWork token_work(const TrainConfig& config);

/// The first weights, of --init-weights or of --model's folder, if they come from one of these. Collective.
/// @returns lines on stored tensors that are not part of the model.
std::vector<std::string> load_first_weights(sherd::nn::CausalModel& model, const TrainConfig& config);

/// As --export-hf says: like the folder that came in, or as transformers would write the preset. Collective.
void export_folder(sherd::nn::CausalModel& model, const TrainConfig& config, bool rank_0);

}  // namespace train_gpt
