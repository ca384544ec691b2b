// Options of fully_shard().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/dtensor/layout.h>
#include <sherd/fsdp/strategy.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/memory_class.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// Options of fully_shard() for the parameters of one unit, the root included.
struct FullyShardOptions {
  Strategy strategy = Strategy::optim_grads_params;
  /// HSDP: state that is also split over replicas. optim: each of R replicas keeps 1/R of its shard's
  /// optimizer state; no_shard: every replica keeps all of it.
  Outer outer = Outer::no_shard;
  /// Under optim_grads_params: reshard the parameters between forward and backward (never the root's). When
  /// false they stay unsharded, in a buffer of the unit's own, until its backward has ended.
  bool reshard_after_forward = true;
  /// dtype of gathered parameters in use: f32 or bf16. Units may differ, and parameters within a unit
  /// (Parameter::set_compute_dtype()); those of one dtype are gathered together.
  DType compute_dtype = DType::f32;
  /// Form of the weights that the optimizer updates, for parameters gathered in bf16 (Parameter::set_master() for some of
  /// them). f32: fp32 master weights beside them, 6 bytes. split: the weights and the low 16 bits of the fp32 value, 4 bytes,
  /// with the bits of fp32 masters that are rounded to bf16 with ties away from zero. bf16: the weights alone, 2 bytes; updates are rounded
  /// stochastically (kernels/rest/rest.h). Parameters gathered in f32 are their own masters under each.
  Master master = Master::f32;
  /// Place of fp32 masters and of low halves (Parameter::set_master_place() for some of them). host: updates pass them through
  /// device windows (optim/rest_windows.h). No effect on weights that are their own masters.
  Place master_place = Place::device;
  /// Cast values (f32, bf16) in the arguments of an nn::Module's call to compute_dtype.
  bool cast_inputs = true;
  /// Cast values in a call's results to this dtype; without it they are unchanged.
  std::optional<DType> output_dtype = std::nullopt;
  /// dtype in which the shard dimension transfers gradients: f32 or bf16. Gradients are computed, accumulated
  /// in f32 in either case, and kept in grad_dtype; the replicate dimension always reduces f32.
  DType reduce_dtype = DType::f32;
  /// dtype in which gradients are kept between microbatches and until the update: f32 or bf16. Backward and sums over ranks compute
  /// in f32, in slots of units. What is kept is rounded stochastically after each microbatch and after the average
  /// (kernels/rest/rest.h; the noise depends on the element, its optimizer's step and the microbatch). Norms and updates read the
  /// rounded values. Of no effect on ignored parameters.
  DType grad_dtype = DType::f32;
  /// Ranks' pieces end between the blocks of 8-bit state (kernels/quantize/quantize.h), which OptimizerOptions::state_dtype i8
  /// needs. Slices become multiples of the largest block, and norms and the like stand behind matrices.
  bool whole_state_blocks = false;
  /// Layout of parameters. Under whole_param each CutClass::row parameter is stored on one rank, in separate
  /// buffers; all others are cut anywhere (ragged). Where weights are gathered for each use
  /// (optim_grads_params), each unit has such a buffer of its own. Where weights are stored unsharded and the
  /// state is split (optim, optim_grads, and no_shard with outer = optim), the matrices of all units are in
  /// buckets that span units, in backward order, as in other layer-wise optimizers (bucket_plan.h).
  LayoutPolicy layout = LayoutPolicy::ragged;
  /// whole_param: method that assigns parameters to ranks.
  Packing packing = Packing::lpt;
  /// Minimum elements of a bucket that spans units (LayerWiseOptions::bucket_elements); 0: one bucket. A
  /// small bucket is reduced early; a large one is transferred in fewer and larger pieces, with less padding.
  /// Under optim_grads unreduced gradients of about two buckets exist at a time, and those of buckets with
  /// the root's own matrices during the whole backward. Units with different bucket_elements share no bucket.
  int64_t bucket_elements = 40'000'000;
  /// Padding allowed for keeping rows whole (LayoutOptions::padding_budget).
  double padding_budget = 0.03;
  /// Number of ranks whose batches a gradient is averaged over. 0: the ranks of the shard and the replicate
  /// dimension. Of a unit with trainable pieces over another dimension than tensor_dim (experts), it is the
  /// root's number: they reduce over fewer ranks than their tokens come from.
  int gradient_ranks = 0;
  /// Names of the mesh dimensions to use. A mesh without the replicate or the context dimension has one rank along it.
  ///
  /// Every dimension of more than one rank must have a meaning for every unit wrapped with the mesh;
  /// otherwise the ranks along it would train separate models. It is one of the following:
  /// - the shard, the context or the replicate dimension;
  /// - a dimension over which each trainable parameter of the unit is cut (Parameter::set_tensor_shard(), experts);
  /// - the tensor dimension, along which all ranks compute on the same data. At least one parameter of the model is
  ///   cut over it. Parameters that are not cut, such as norms, have the same gradient on each of its ranks.
  /// Multiply data-parallel dimensions of other names into one of these when making the mesh. Ignored
  /// and frozen parameters are exempt.
  std::string shard_dim = "shard";
  std::string replicate_dim = "replicate";
  std::string tensor_dim = "tp";
  /// Ranks that share sequences, each with a slice of them (nn/context_parallel.h). They join the shard group: parameters,
  /// gradients and states are sharded over shard x context, the shard dimension outermost, and gradients averaged over
  /// these ranks as over ranks with other sequences. The model's attention exchanges heads over this dimension
  /// (nn::AttentionOptions::context); a step in which it does not fails.
  /// "context" names no such dimension where another option has this name.
  std::string context_dim = "context";

  /// Returns whether ranks along a mesh dimension share sequences.
  bool shares_sequences(std::string_view dim) const {
    return dim == context_dim && dim != shard_dim && dim != replicate_dim && dim != tensor_dim;
  }
  /// Returns whether gradients are averaged over the ranks along a mesh dimension.
  bool averages_over(std::string_view dim) const {
    return dim == shard_dim || dim == replicate_dim || shares_sequences(dim);
  }
};

/// Options of fully_shard() for the whole model; the call of the root has them.
struct RootOptions {
  /// Number of units gathered ahead of the one that computes. Each nesting level of wrapped modules
  /// has prefetch + 1 gather buffers, used in turn, so that a unit always gathers to the same address. A unit
  /// gets a buffer of its own when it is first used while another unit holds its buffer (a wrapped module
  /// that two wrapped blocks call).
  int prefetch = 1;
  /// Reduce one unit's gradients while the next computes; this needs a second gradient buffer.
  bool overlap_reduce = true;
  /// Accept trainable parameters that no backward reached: their gradient is zero. Otherwise the last
  /// backward of a step throws, naming all of them. The unused parameters must be the same on every rank,
  /// which is checked.
  bool allow_unused = false;
  /// Full names of ignored parameters: unsharded on every rank, gradients never reduced and not part
  /// of the gradient norm. An optimizer still updates them, each rank with its own gradient, unless they are
  /// frozen.
  std::vector<std::string> ignored = {};
  /// Seed of the initial weights.
  uint64_t seed = 0;
};

}  // namespace sherd
