// Models that are planned only: families whose attention has no kernel here, on dry devices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/nn/models/causal_model.h>
#include <sherd/train/report/flops.h>

namespace sherd::tools {

/// Decoder with multi-head latent attention (DeepSeek-V3, arXiv:2412.19437; Kimi K2, arXiv:2507.20534) or, with
/// kv_lora 0, grouped queries, and experts in all blocks behind the first dense ones.
struct PlannedShape {
  int64_t vocab = 0, dim = 0;
  int64_t layers = 0, dense_layers = 0, dense_hidden = 0;
  int64_t experts = 0, top_k = 0, shared_experts = 0, expert_hidden = 0;
  int64_t heads = 0;
  int64_t q_lora = 0, kv_lora = 0, nope = 0, rope = 0, value = 0;  // latent attention
  int64_t kv_heads = 0, head_dim = 0;                              // grouped queries
  bool biases = false;                                             // of attention, router and experts
  /// Parts of the model that this stage of a pipeline has.
  bool embeds = true, has_head = true;
};

/// Returns the names: deepseek-v3, kimi-k2, gpt-oss-120b.
std::vector<std::string> planned_names();
/// Returns whether the name is one of them.
bool is_planned(std::string_view name);
/// @throws InvalidArgument listing the names.
PlannedShape planned_shape(std::string_view name);

/// Returns the products of a token, the router's left out (Megatron-LM, num_floating_point_operations).
TokenWork token_work(const PlannedShape& shape);

/// Elements of all parameters, and of those that a token meets: of experts top_k.
struct ParameterCount {
  int64_t all = 0, active = 0;
};
ParameterCount count_parameters(const PlannedShape& shape);

/// Returns the shape of the stages between the first and the last of a pipeline: blocks alone, those with experts where
/// there are some. @throws InvalidArgument for more stages than blocks.
PlannedShape middle_stage(PlannedShape shape, int stages);

/// Builds the model. Its forward runs on a dry device alone; elsewhere it throws NotSupported.
std::unique_ptr<nn::CausalModel> planned_model(const PlannedShape& shape, const nn::ExpertParallel& ep);

}  // namespace sherd::tools
