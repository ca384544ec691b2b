// Layer-wise layout: whole parameters of a whole model in one buffer, cut into buckets that span units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/dtensor/layout.h>

namespace sherd {

struct LayerWiseParam {
  LayoutParam param;  // its cut class is unused: it is never cut
  /// Shared with another place in the model: closes the bucket and has a bucket of its own.
  bool tied = false;
};

struct LayerWiseOptions {
  Packing packing = Packing::lpt;
  /// Minimum elements of a bucket. A bucket is closed when two conditions hold. Its parameters have this many
  /// elements, but at least 0.9 * world times those of the largest. And the next parameter does not fit into
  /// the bucket's existing padding. 0: one bucket.
  int64_t bucket_elements = 0;
  /// Slices are a multiple of this many elements, besides shard_divisor(world).
  int64_t align = 64;
};

/// One bucket: a whole_param layout of parameters that are contiguous in model order, so that its reduction
/// can start when backward has passed them.
struct LayerWiseBucket {
  FullIndex begin;      // in the buffer
  int first_param = 0;  // the layout's parameter p is first_param + p of the model
  ShardLayout layout;
};

/// Layout of the layer-wise optimizer, as Megatron-LM's for LPT. Parameters are walked from the last to the
/// first (backward order) and closed into buckets; the packing rule assigns each bucket's parameters to
/// ranks. Costs carry over from bucket to bucket, fills do not. The older rules assign inside the same
/// buckets. The result depends on the arguments only.
struct LayerWiseLayout {
  int world = 1;
  std::vector<LayerWiseBucket> buckets;  // in backward order, which is buffer order
  int64_t elements = 0;                  // of the buffer
  int64_t padding = 0;                   // elements that belong to no parameter

  /// Makes the layout.
  /// @param params in model order.
  /// @throws InvalidArgument naming all errors: world < 1, no parameters, a negative size or cost, align < 1,
  /// bucket_elements < 0. Naming the sizes: a buffer that passes 64-bit arithmetic.
  [[nodiscard]] static LayerWiseLayout make(const std::vector<LayerWiseParam>& params, int world,
                                            const LayerWiseOptions& options);
  /// Returns each rank's cost over all buckets, in units of packing_cost().
  const std::vector<double>& rank_cost() const { return buckets.back().layout.rank_cost(); }
  /// Returns a 64-bit digest of everything above.
  uint64_t fingerprint() const;
};

}  // namespace sherd
