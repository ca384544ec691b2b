// Generation of text by a causal model, several sequences at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <sherd/nn/models/causal_model.h>
#include <sherd/nn/models/draw.h>

namespace sherd::nn {

struct GenerateOptions {
  int64_t max_tokens = 128;  ///< new tokens of each sequence at most
  /// By default greedy: the token of the largest logit.
  DrawOptions draw{.temperature = 0};
  /// Of the draws. Sequence i draws by seed and i alone; ranks with other prompts take other seeds.
  uint64_t seed = 0;
  /// Tokens that end a sequence; the last token that it gets is the one that ended it.
  std::vector<int32_t> stop{};
  /// Positions of a sequence that the model sees, at most ModelDescription::positions; 0: as many of these as its prompt and
  /// max_tokens need. A longer text is run again from its last three quarters (SlidingContext).
  int64_t capacity = 0;
  /// Ranks that generate the same texts, such as those of a tensor-parallel group: all take the tokens, and the ends, that the group's
  /// first rank drew, since logits of ranks that share experts may differ in the last bits. Null: this rank alone.
  Communicator* same = nullptr;
  /// Ranks with prompts of their own whose forwards are collectives, such as the data-parallel ranks of a model that is
  /// sharded: a rank without sequences left runs forwards of one token until the others are done. Null: forwards need no
  /// other ranks: inside Unsharded, until the weights change, and without expert parallelism.
  Communicator* together = nullptr;
  /// Called for each new token, with the index of its prompt.
  std::function<void(size_t, int32_t)> made = nullptr;
};

/// Returns the new tokens of each prompt. Runs every prompt through the model, then all sequences together, a token each; a
/// sequence that a stop token ends takes no part in later forwards, and its cache is freed. Greedy text is that of the
/// sequence alone, where logits that rounding may exchange are not equal. Waits for the device at every token. Collective where
/// the model's forwards are; the model is in evaluation mode meanwhile.
/// @throws InvalidArgument for a prompt without tokens, options that draw_token() refuses, and logits that are NaN; as the
/// model's forward.
std::vector<std::vector<int32_t>> generate(CausalModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options = {});

}  // namespace sherd::nn
