// Passes over lists of segments: a launch takes some of them by value and shares tiles of elements out
// among its blocks, so that one huge segment and many small ones both fill the chip. Private to CUDA kernels.
#pragma once

#include <vector>

#include "vector.h"

namespace sherd::cuda {

constexpr int kSegments = 48, kSegmentThreads = 256;
constexpr int64_t kTile = 4 * kSegmentThreads;  // groups or single elements, four to a thread

/// Op: what a segment points to, with run<N>(i, common) for elements [i, i + N) of it. Common: what is the
/// same for all, with nothing_to_do(), asked once by every thread.
template <class Op>
struct Batch {
  /// As many as kernel parameters of 4096 bytes hold beside 256 for the common ones.
  static constexpr int kMost =
      std::min<int>(kSegments, (4096 - 256 - 16) / static_cast<int>(sizeof(Op) + sizeof(Cover) + 8));
  int count = 0;
  Op ops[kMost];
  Cover covers[kMost];
  int64_t tiles[kMost + 1] = {};  // tiles of the segments before
};

template <class Op, class Common>
__global__ void __launch_bounds__(kSegmentThreads)
    over_segments(const __grid_constant__ Batch<Op> batch, const __grid_constant__ Common common) {
  if (common.nothing_to_do()) return;
  int s = 0;
  for (int64_t tile = blockIdx.x; tile < batch.tiles[batch.count]; tile += gridDim.x) {
    while (batch.tiles[s + 1] <= tile) ++s;
    const Op op = batch.ops[s];
    const Cover cover = batch.covers[s];
    const int64_t singles = cover.singles(Op::kVec);
    // Groups come first, then the single elements.
    const int64_t first = (tile - batch.tiles[s]) * kTile + threadIdx.x;
#pragma unroll
    for (int64_t u = first; u < first + kTile; u += kSegmentThreads) {
      if (u < cover.vecs) {
        op.template run<Op::kVec>(cover.head + u * Op::kVec, common);
      } else if (u < cover.vecs + singles) {
        op.template run<1>(cover.single(u - cover.vecs, Op::kVec), common);
      }
    }
  }
}

/// make(segment) gives its Op, whose cover() knows its arrays.
template <class Op, class Common, class Segment, class Make>
void for_segments(ExecutionContext& context, const char* what, const std::vector<Segment>& segments,
                  const Common& common, Make make) {
  static_assert(sizeof(Batch<Op>) + sizeof(Common) <= 4096, "kernel parameters");
  Batch<Op> batch;
  const auto flush = [&] {
    const int64_t tiles = batch.tiles[batch.count];
    if (tiles > 0)
      launch(context, what, over_segments<Op, Common>,
             Grid{dim3(blocks_of(tiles, 1, 132 * 16)), dim3(kSegmentThreads)}, batch, common);
    batch.count = 0;
  };
  for (const Segment& segment : segments) {
    if (segment.count <= 0) continue;
    const int i = batch.count++;
    batch.ops[i] = make(segment);
    batch.covers[i] = batch.ops[i].cover_of(segment.count);
    const int64_t units = batch.covers[i].vecs + batch.covers[i].singles(Op::kVec);
    batch.tiles[i + 1] = batch.tiles[i] + (units + kTile - 1) / kTile;
    if (batch.count == Batch<Op>::kMost) flush();
  }
  flush();
}

}  // namespace sherd::cuda
