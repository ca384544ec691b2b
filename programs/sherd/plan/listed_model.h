// Models of which a list of parameters is known alone, on dry devices.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <sherd/nn/models/causal_model.h>
#include <sherd/train/report/flops.h>

#include "layout/param_file.h"
#include "train_gpt/model/trained_work.h"

namespace sherd::tools {

/// Parameters in model order. A matrix [out, in] is a product of each token; a stack of matrices [experts, out, in] is
/// experts, of which a token takes top_k. An embedding is looked up, and where it is tied, it is the head, too.
/// Attention, which no list describes, is not part of the model.
struct ListedModel {
  std::vector<ParamEntry> params;
  int64_t top_k = 1;
};

/// Reads a list as sherd layout takes it, or the headers of a safetensors file or a folder of them. Of the latter a
/// unit is what stands before and with the first number of a name ("model.layers.0"), and the optimizer follows from guess_roles().
/// @throws InvalidArgument as read_params(); IoError and CorruptCheckpoint as scan_safetensors().
std::vector<ParamEntry> read_listed(const std::filesystem::path& path);

TokenWork token_work(const ListedModel& model);
train_gpt::ParameterCount count_parameters(const ListedModel& model);

/// Routing rules, as --route has them, that give each matrix the optimizer of the list. @param matrices the run's --optimizer
std::string listed_routes(const ListedModel& model, const std::string& matrices);

/// Builds the model: a block for each unit, and the root. Activations are the outputs of products. Its forward runs on
/// a dry device alone; elsewhere it throws NotSupported.
std::unique_ptr<nn::CausalModel> listed_model(const ListedModel& model);

}  // namespace sherd::tools
