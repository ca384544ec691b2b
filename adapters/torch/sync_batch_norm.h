// Batch normalization with the statistics of all ranks' batches.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>

#include <sherd/dtensor/mesh.h>
#include <sherd/torch/reset_parameters.h>

namespace sherd::torch {

/// Replacement of torch::nn::BatchNorm1d, 2d and 3d. In training mode mean and variance are those of all
/// ranks' batches together, as on one rank with the whole batch. Same options, parameters, buffers and names.
///
///     sherd::torch::SyncBatchNorm norm{torch::nn::BatchNormOptions(64)};
///     ...
///     sherd::torch::share_batches(*model, mesh);   // before or after fully_shard(), before the first forward
///
/// Channels are dimension 1 of an input [n, c, ...]; ranks may have different n, or 0. Sums are f64, over
/// elements and then over ranks in the communicator's order, as are the values of a channel derived from
/// them. Each element is computed in f32 (f64 for an f64 input), and the result has the input's dtype.
/// Running statistics, with the unbiased variance, are the same on every rank, and so is evaluation.
/// Gradients pass through the statistics, to any order.
///
/// In training mode a forward is collective over the ranks that share the batch: two small all-reduces, and
/// two in its backward. Evaluation has none. Without share_batches() the batch is one rank's.
class SyncBatchNormImpl
    : public ::torch::nn::NormImplBase<1, SyncBatchNormImpl, ::torch::nn::BatchNormOptions>,
      public Resettable {
 public:
  explicit SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& options);
  explicit SyncBatchNormImpl(int64_t channels) : SyncBatchNormImpl(::torch::nn::BatchNormOptions(channels)) {}
  /// @throws InvalidArgument for an input of fewer than two dimensions or of other channels, and, in training mode, when all
  /// ranks together have at most one value for each channel.
  at::Tensor forward(const at::Tensor& input);
  /// Shares the batch with `ranks`, a communicator without other users; null: this rank alone.
  void share(std::shared_ptr<Communicator> ranks) { ranks_ = std::move(ranks); }
  void reset_parameters() override { NormImplBase::reset_parameters(); }
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  at::Tensor sum_over_ranks(const at::Tensor& local) const;
  void track(const at::Tensor& mean, const at::Tensor& variance, double count);

  std::shared_ptr<Communicator> ranks_;
};

class SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;
};

/// Makes every SyncBatchNorm of `module` use the batches of all ranks of the mesh; DeviceMesh::submesh() names fewer.
/// Collective.
/// @returns their number. @throws InvalidArgument for a module without one.
int share_batches(::torch::nn::Module& module, const DeviceMesh& mesh);

}  // namespace sherd::torch
