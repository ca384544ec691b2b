// This rank's pieces of the weights as tensors, for optimizers of libtorch's.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sherd::torch {

/// Optimizers that work element by element (torch::optim::AdamW, SGD, Adam, RMSprop) can update the pieces
/// that a rank holds without knowing of the others:
///
///     sherd::torch::LocalShards shards(*model);
///     torch::optim::AdamW optimizer(shards.parameters(), torch::optim::AdamWOptions(1e-3));
///     loss.backward();
///     shards.step([&] { optimizer.step(); });
///
/// Their state is sharded alike, and is the program's to save: checkpoints of sherd's know that of
/// sherd::Optimizer. A model has sherd's optimizers or these.
class LocalShards {
 public:
  /// @throws InvalidArgument before fully_shard(root).
  explicit LocalShards(::torch::nn::Module& root);
  ~LocalShards();
  LocalShards(const LocalShards&) = delete;
  LocalShards& operator=(const LocalShards&) = delete;

  /// The f32 master weights of every trainable parameter in the order of named_parameters(): the flat
  /// interval that this rank holds, which may be empty, [n]. They are views: their memory is the model's.
  std::vector<at::Tensor> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  /// Calls `update` with the averaged gradients in their grad(), which is empty outside of it, and starts the
  /// next step. Waits for the reductions. When sherd::clip_grad_norm() has found gradients that are not finite,
  /// the step is skipped: `update` is not called.
  /// @returns whether it was. Collective. @throws InvalidArgument without final gradients.
  bool step(const std::function<void()>& update);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::torch
