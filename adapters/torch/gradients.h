// Gradients of a sharded model after its backward: this rank's pieces, and norms by name.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>

namespace sherd::torch {

/// This rank's part of a parameter's gradient.
struct GradientPiece {
  std::string name;
  /// The elements of the parameter, in row-major order, that this rank holds; may be empty.
  ParamRange range;
  /// The same elements as boxes of the parameter, in the order of `values`.
  std::vector<Box> boxes;
  /// f32 [range.size()], a copy: the averaged gradient, clipped if clip_grad_norm() was called without in_update.
  at::Tensor values;
};

/// Returns the pieces of all parameters that train in this step, in the order of named_parameters(). Between the last
/// backward of a step and its optimizer step; grad() of a sharded parameter is always empty. Waits for the reductions. No
/// other communication.
/// @throws InvalidArgument before fully_shard(), and without final gradients.
std::vector<GradientPiece> gradient_pieces(::torch::nn::Module& root);

/// Returns the L2 norm of each of these gradients over all ranks, by the parameter's name: the root of a sum
/// in f64, the same on every rank. For an ignored parameter it is world rank 0's. The norm of these norms
/// equals that of clip_grad_norm() up to rounding. Collective: one gather of 8 bytes for each parameter and
/// rank.
/// @throws as gradient_pieces().
std::vector<std::pair<std::string, double>> gradient_norms(::torch::nn::Module& root);

}  // namespace sherd::torch
