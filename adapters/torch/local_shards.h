// This rank's shards of the weights as tensors, for libtorch's optimizers.
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

/// Optimizers that work element by element (torch::optim::AdamW, SGD, Adam, RMSprop) can update the pieces
/// that a rank holds without knowing of the others:
///
///     sherd::torch::LocalShards shards(*model);
///     torch::optim::AdamW optimizer(shards.parameters(), torch::optim::AdamWOptions(1e-3));
///     loss.backward();
///     shards.step([&] { optimizer.step(); });
///
/// Parameters whose requires_grad is off in a step have no gradient in it, as in plain libtorch: such optimizers leave
/// them and their state alone.
///
/// Their state is sharded alike; keep_state() puts it into checkpoints. A model has sherd's optimizers or these.
class [[nodiscard]] LocalShards {
 public:
  /// @param skip_non_finite whether step() checks the gradients itself, with one all-reduce over the ranks
  /// that hold them in pieces, unless clip_grad_norm() has; as of sherd::OptimizerOptions.
  /// @throws InvalidArgument before fully_shard(root).
  explicit LocalShards(::torch::nn::Module& root, bool skip_non_finite = true);
  ~LocalShards();
  LocalShards(const LocalShards&) = delete;
  LocalShards& operator=(const LocalShards&) = delete;

  /// The f32 master weights that this rank holds of every trainable parameter, in the order of named_parameters(). They
  /// are views: their memory is the model's. Each has as many dimensions as the parameter, on every rank, so that groups
  /// chosen by dim(), as for weight decay, are the same on all ranks and those of a model on one rank:
  ///   - of a parameter [r, ...] with two or more dimensions: [n, ...], n whole rows, which may be none; where a boundary
  ///     between ranks cuts a row: [1, ..., n], its n elements in their order;
  ///   - of others: [n].
  /// An optimizer must use no more of the shape than dim(): it is that of a piece.
  std::vector<at::Tensor> parameters() const;
  /// With the parameters' full names, for groups by name.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  /// Calls `update` with the averaged gradients in their grad(), which is empty outside of it, and starts the
  /// next step. Waits for the reductions. When gradients are not finite on some rank, the step is skipped on all: `update`
  /// is not called.
  /// @returns whether it was. Collective. @throws InvalidArgument without final gradients.
  bool step(const std::function<void()>& update);
  /// Steps that were skipped so far.
  int64_t skipped() const;

  /// Keeps the state of these optimizers, which are all that update the model, in sherd's memory from now on, by parameter
  /// and key (optimizer_state.h). What they hold already is moved there. Afterwards, each before step():
  ///
  ///     sherd::Optimizer& state = shards.keep_state(optimizer);
  ///     sherd::CheckpointSaver saver(rank.world, sherd::checkpoint_tensors(root, &state), {.folder = "run"});
  ///     sherd::resume("run", root, &state);   // on any number of ranks, under any strategy
  ///
  /// Names in files are those of sherd's optimizers: "optim.state.NAME.exp_avg", "...step" (f32, of an optimizer without a
  /// count: the updates since its state exists). AdamW's state may resume in sherd's AdamW, and the reverse.
  /// Options (lr, betas, ...) are in no checkpoint. One call for each LocalShards; the optimizers are neither moved nor
  /// destroyed before the last step().
  /// @returns the state for checkpoints, which *this owns. Its own step() throws InvalidArgument.
  /// @throws InvalidArgument naming the parameters that no optimizer has, or several. Collective.
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
