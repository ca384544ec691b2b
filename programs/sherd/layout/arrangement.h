// Arrangement: a model's buffers and the plan of its matrices' optimizer on a number of ranks, computed without running it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sherd/dtensor/layout.h>
#include <sherd/optim/whole/make_plan.h>

#include "param_file.h"

namespace sherd::tools {

struct ArrangeOptions {
  int world = 1;
  LayoutChoice layout;
  /// whole_param: LayerWiseOptions::bucket_elements of the matrices' buffers.
  int64_t bucket_elements = 0;
  int64_t align = 64;
  /// whole_param: each unit's matrices are packed by themselves, as optim_grads_params has them.
  bool per_unit = false;
  /// Optimizer of the matrices that the model gives to Muon: KL-SOAP instead, with its default options.
  bool soap = false;
  /// MomentumOptions::state_weight.
  double state_weight = 0.5;
};

/// One collective's part of a buffer. Element e of rank r's slice is element start + r * slice + e of the
/// buffer.
struct Bucket {
  int64_t start = 0;
  ShardLayout layout;
  std::vector<int> params;  // of the layout's parameters: index in the model
};

struct Buffer {
  /// "UNIT/DTYPE", "UNIT/DTYPE, master FORM", "UNIT/DTYPE, whole matrices"; "whole_param/DTYPE" for matrices of all units
  std::string name;
  DType dtype = DType::f32;
  std::vector<Bucket> buckets;
  int64_t elements = 0;  // with padding
  int64_t padding = 0;
};

/// Position of a parameter: buffers[buffer].buckets[bucket], parameter `param` of its layout.
struct ParamPlace {
  int buffer = -1, bucket = 0, param = 0;
};

/// The groups that fully_shard() makes (plan_units()), one buffer for each: of every unit and dtype, under
/// whole_param apart for matrices and the rest. A unit's position in the model is its rotation; one called
/// "root" counts last, as the root does. Without ArrangeOptions::per_unit, whole_param has Muon's matrices of
/// all units in the buckets of optim and optim_grads instead (plan_buckets()): one LayerWiseLayout for each dtype,
/// whose costs carry over from bucket to bucket, not from one dtype's buffer to the next.
struct Arrangement {
  std::vector<ParamEntry> model;
  ArrangeOptions options;
  std::vector<Buffer> buffers;
  std::vector<ParamPlace> places;          // of the model's parameters
  std::shared_ptr<const MatrixWork> work;  // of the optimizer of matrices
  std::vector<LogicalMatrix> matrices;     // its, in model order
  std::vector<int> matrix_param;           // their parameters, as index in the model
  MatrixPlan plan;

  /// @throws InvalidArgument when the model is too large for arithmetic in 64 bits on so many ranks, or has
  /// more than 2^20 matrices.
  static Arrangement make(std::vector<ParamEntry> model, const ArrangeOptions& options);
  /// Returns a digest of all layouts and the plan.
  uint64_t fingerprint() const;

  const Bucket& bucket_of(const ParamPlace& at) const { return buffers[at.buffer].buckets[at.bucket]; }

  Arrangement() = default;
  Arrangement(Arrangement&&) = default;  // matrices point into buffers, which stay where they are
  Arrangement& operator=(Arrangement&&) = default;
};

/// Calls f(first rank, end rank, elements on each of them) for the ranks that hold some of parameter p, ranks
/// with equally much together.
template <class F>
void for_holders(const ShardLayout& layout, int p, F f) {
  const int64_t numel = numel_of(layout.params()[p].shape);
  if (numel == 0) return;
  int first = 0, last = 0;
  if (layout.zero_copy()) {
    first = static_cast<int>(layout.full_range(ParamId(p)).begin.value / layout.slice());
    last = static_cast<int>((layout.full_range(ParamId(p)).end.value - 1) / layout.slice());
  } else {
    last = static_cast<int>((numel - 1) / layout.piece(ParamId(p), RankId(0)).size());
  }
  f(first, first + 1, layout.piece(ParamId(p), RankId(first)).size());
  if (last > first + 1) f(first + 1, last, layout.piece(ParamId(p), RankId(first + 1)).size());
  if (last > first) f(last, last + 1, layout.piece(ParamId(p), RankId(last)).size());
}

}  // namespace sherd::tools
