// This rank's shards of the weights as tensors for libtorch's optimizers.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/optim/optimizer.h>
#include <sherd/torch/optimizer_state.h>

namespace sherd::torch {

/// Shards for optimizers that work element by element (torch::optim::AdamW, SGD, Adam, RMSprop). They can
/// update a rank's pieces without the others:
///
///     sherd::torch::LocalShards shards(*model);
///     torch::optim::AdamW optimizer(shards.parameters(), torch::optim::AdamWOptions(1e-3));
///     loss.backward();
///     shards.step([&] { optimizer.step(); });
///
/// Parameters with requires_grad off in a step have no gradient in it, as in plain libtorch. Such optimizers
/// do not change them or their state.
///
/// Their state is sharded in the same way; keep_state() puts it into checkpoints. A model has sherd's
/// optimizers or these.
class [[nodiscard]] LocalShards {
 public:
  /// @param skip_non_finite whether step() checks the gradients itself, as in sherd::OptimizerOptions. The
  /// check is one all-reduce over the ranks that hold pieces of them, unless clip_grad_norm() has made it.
  /// @throws InvalidArgument before fully_shard(root), and where masters are not fp32 (FullyShardOptions::master).
  explicit LocalShards(::torch::nn::Module& root, bool skip_non_finite = true);
  ~LocalShards();
  LocalShards(const LocalShards&) = delete;
  LocalShards& operator=(const LocalShards&) = delete;

  /// Returns the f32 master weights that this rank holds of every trainable parameter, in the order of
  /// named_parameters(). They are views of the model's memory. Each has as many dimensions as the parameter,
  /// on every rank. Groups chosen by dim(), as for weight decay, are thus the same on all ranks and in a
  /// model on one rank:
  ///   - of a parameter [r, ...] with two or more dimensions: [n, ...], n whole rows, which may be none; where a boundary
  ///     between ranks cuts a row: [1, ..., n], its n elements in their order;
  ///   - of others: [n].
  /// An optimizer must use nothing of the shape but dim(): it is the shape of a piece.
  std::vector<at::Tensor> parameters() const;
  /// Returns them with the parameters' full names, for groups by name.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  /// Calls `update` with the averaged gradients in grad(), which is empty outside of it, and starts the next
  /// step. Waits for the reductions. If gradients are not finite on some rank, all ranks skip the step:
  /// `update` is not called.
  /// @returns whether `update` was called. Collective. @throws InvalidArgument without final gradients.
  bool step(const std::function<void()>& update);
  /// Returns the number of skipped steps so far.
  int64_t skipped() const;

  /// Keeps the state of these optimizers in sherd's memory from now on, by parameter and key
  /// (optimizer_state.h). They are all optimizers of the model. State that they have already is moved there.
  /// Afterwards, each before step():
  ///
  ///     sherd::Optimizer& state = shards.keep_state(optimizer);
  ///     sherd::CheckpointSaver saver(rank.world, sherd::checkpoint_tensors(root, &state), {.folder = "run"});
  ///     sherd::resume("run", root, &state);   // on any number of ranks, under any strategy
  ///
  /// Names in files are those of sherd's optimizers: "optim.state.NAME.exp_avg", "...step" (f32; of an
  /// optimizer without a count: its updates since the state was made). AdamW's state may resume in sherd's
  /// AdamW, and the reverse. Options (lr, betas, ...) are not in checkpoints. Call it once for each
  /// LocalShards. The optimizers are neither moved nor destroyed before the last step().
  /// @returns the state for checkpoints, owned by *this. Its own step() throws InvalidArgument.
  /// @throws InvalidArgument naming the parameters that are in no optimizer or in several. Collective.
  template <class... Optimizers>
  sherd::Optimizer& keep_state(Optimizers&... optimizers) {
    return keep({detail::kept(optimizers)...});
  }

 private:
  sherd::Optimizer& keep(std::vector<detail::KeptOptimizer> optimizers);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::torch
