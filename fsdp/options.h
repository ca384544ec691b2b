// Options of fully_shard().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sherd/dtensor/layout.h>
#include <sherd/fsdp/strategy.h>
#include <sherd/kernels/device/dtype.h>

namespace sherd {

/// Options of fully_shard(). Those marked (root) are taken from the root's call only.
struct FullyShardOptions {
  Strategy strategy = Strategy::optim_grads_params;
  /// HSDP: what is also split among replicas. optim: each of R replicas keeps 1/R of its shard's optimizer
  /// state; no_shard: every replica keeps all of it.
  Outer outer = Outer::no_shard;
  /// Under optim_grads_params: free (never the root's) the unsharded parameters between forward and backward.
  /// When false they stay in a buffer of the unit's own until its backward is done.
  bool reshard_after_forward = true;
  /// (root) Units gathered ahead of the one that computes. Each nesting level of wrapped modules owns
  /// prefetch + 1 gather buffers, used in turn, so that a unit always gathers to the same address. A unit that
  /// is used while another holds its buffer (a wrapped module that two wrapped blocks call) gets one of its own, the first
  /// time that this happens.
  int prefetch = 1;
  /// (root) Reduce one unit's gradients while the next computes; costs a second gradient buffer.
  bool overlap_reduce = true;
  /// dtype in which the unit's parameters are gathered and used: f32 or bf16. Units may differ, and parameters within
  /// a unit (Parameter::set_compute_dtype()); those of one dtype are gathered together. Master weights stay f32.
  DType compute_dtype = DType::f32;
  /// Calls of an nn::Module cast values (f32, bf16) among their arguments to compute_dtype.
  bool cast_inputs = true;
  /// To which they cast values among their results; as they are without it.
  std::optional<DType> output_dtype = std::nullopt;
  /// dtype of gradients on the wire over the shard dimension: f32 or bf16. Gradients are computed,
  /// accumulated and kept in f32 in either case; the replicate dimension always reduces f32.
  DType reduce_dtype = DType::f32;
  /// Under whole_param CutClass::row parameters lie whole on one rank each, in buffers of their own; all
  /// others are cut anywhere (ragged). Where weights are gathered for each use (optim_grads_params) each unit
  /// has such a buffer of its own. Where they rest whole and the state is split (optim, optim_grads, and
  /// no_shard with outer = optim) the matrices of all units lie in buckets that span units, in backward
  /// order, as the field's layer-wise optimizers have them (bucket_plan.h).
  LayoutPolicy layout = LayoutPolicy::ragged;
  /// whole_param: how parameters are dealt to ranks.
  Packing packing = Packing::lpt;
  /// Least elements of a bucket that spans units (LayerWiseOptions::bucket_elements); 0: one bucket. A small
  /// bucket is reduced early, a large one is moved in fewer and larger pieces, with less padding. Under
  /// optim_grads whole gradients of about two buckets are there at a time, and those of buckets with the
  /// root's own matrices throughout. Units whose bucket_elements differ share no bucket.
  int64_t bucket_elements = 40'000'000;
  /// Padding that may be spent on keeping rows whole (LayoutOptions::padding_budget).
  double padding_budget = 0.03;
  /// (root) Accept trainable parameters that no backward touched: their gradient is zero. Otherwise the last
  /// backward of a step throws, naming all of them. What is unused must be so on every rank, which is
  /// checked.
  bool allow_unused = false;
  /// (root) Full names of parameters that are left alone: whole on every rank, gradients never reduced and
  /// not part of the gradient norm. An optimizer still updates them, each rank with its own gradient, unless
  /// they are frozen.
  std::vector<std::string> ignored = {};
  /// (root) Seed of the initial weights.
  uint64_t seed = 0;
  /// Ranks whose batches a gradient is averaged over; 0 = those of the mesh dimensions below. Expert
  /// parameters reduce over fewer ranks than their tokens come from.
  int gradient_ranks = 0;
  /// Names of the mesh dimensions to use. A mesh without the replicate dimension has one replica.
  ///
  /// Every dimension of more than one rank must mean something to every unit wrapped with the mesh, for ranks
  /// along one that means nothing would train models of their own. It is the shard or the replicate
  /// dimension; or each trainable parameter of the unit is cut over it (Parameter::set_tensor_shard(),
  /// experts); or it is the tensor dimension, along which all ranks compute on the same data: parameters are
  /// cut over it (at least one of the model) or whole, with the same gradient on each of its ranks, as norms
  /// are. Data-parallel dimensions of other names are multiplied into one of the first two when the mesh is
  /// made. Ignored and frozen parameters are not asked.
  std::string shard_dim = "shard";
  std::string replicate_dim = "replicate";
  std::string tensor_dim = "tp";
};

}  // namespace sherd
