// Tensor sharded or replicated over a mesh.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/dtensor/layout.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/dtensor/placement.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Extent of an even shard: n elements over `parts` ranks in chunks of ceil(n/parts). Trailing ranks may get
/// less or nothing, then at offset n.
struct EvenChunk {
  int64_t offset = 0, size = 0;
};
[[nodiscard]] EvenChunk even_chunk(int64_t n, int parts, int index);

/// Distributed tensor: global shape, one placement per mesh dimension, and this rank's local tensor.
///
/// There are two kinds of shards. *Even*: Shard(d) gives chunks of ceil(size/ranks). When several mesh
/// dimensions shard the same tensor dimension, the innermost (last) mesh dimension cuts first and outer ones
/// cut its pieces. *Ragged*: the local tensor is the flat interval of one parameter of a ShardLayout, cut
/// over a list of mesh dimensions (all of which report Shard(0)), flattened in the list's order, first name
/// outermost. Partial tensors are summed in the communicator's fixed tree, innermost mesh dimension first.
class DTensor {
 public:
  /// Wraps a local tensor. @throws ShapeMismatch when its shape is not the even shard's, InvalidArgument for
  /// bad placements (count, dim out of range).
  [[nodiscard]] static DTensor from_local(DeviceMesh mesh, Shape global, std::vector<Placement> placements,
                                          Tensor local);
  /// Wraps the flat local interval of parameter `param` of `layout`; `over` names the mesh dimensions.
  [[nodiscard]] static DTensor from_layout(DeviceMesh mesh, std::vector<std::string> over,
                                           std::shared_ptr<const ShardLayout> layout, int param,
                                           Tensor local);
  /// Returns this rank's shards of a tensor that every rank holds unsharded. No communication. Partial puts
  /// the value on coordinate 0 and zeros elsewhere.
  [[nodiscard]] static DTensor distribute(Stream& stream, DeviceMesh mesh, const Tensor& full,
                                          std::vector<Placement> placements);

  const DeviceMesh& mesh() const { return mesh_; }
  const Shape& shape() const { return global_; }
  const std::vector<Placement>& placements() const { return placements_; }
  const Tensor& local() const { return local_; }
  bool ragged() const { return layout_ != nullptr; }
  /// Return shape and global offset of the local piece; an empty one has offset = size on its dimension. A
  /// ragged scalar counts as [1].
  /// @throws NotSupported for a ragged tensor that is not a whole number of rows.
  Shape local_shape() const;
  Shape global_offset() const;
  /// Returns the local piece as global boxes, in the order of its elements; none when it is empty. A scalar
  /// counts as [1].
  [[nodiscard]] std::vector<Box> boxes() const;

  /// Returns the same tensor under other placements (even shards): any of R, S, P to any of R, S, P, per mesh
  /// dimension; to P puts the value on coordinate 0. Collective over the mesh; queued on `stream`. The result
  /// shares memory with this tensor where no data moves. A ragged tensor is gathered first. @throws
  /// InvalidArgument for bad placements.
  [[nodiscard]] DTensor redistribute(Stream& stream, std::vector<Placement> to) const;
  /// Returns the unsharded tensor on every rank; the local one itself when it is unsharded already.
  /// Collective over the mesh.
  [[nodiscard]] Tensor full_tensor(Stream& stream) const;

 private:
  DTensor(DeviceMesh mesh, Shape global, std::vector<Placement> placements, Tensor local);
  Box local_box() const;

  DeviceMesh mesh_;
  Shape global_;
  std::vector<Placement> placements_;
  Tensor local_;
  std::shared_ptr<const ShardLayout> layout_;
  std::vector<std::string> over_;
  int param_ = 0;
  int layout_rank_ = 0;
};

/// Moves a flat buffer of n equal slices between placements along one group. All group buffers use it.
///
/// `full` has comm.size() * slice.numel() elements. `slice` is this rank's slice: either the view of `full`
/// at rank * slice.numel() (in place, nothing is copied) or separate memory. Placements are R, S(0), P:
/// S -> R all-gather; P -> S reduce-scatter; P -> R all-reduce of `full` (slice unused); R -> S copies the slice
/// out unless it is a view; X -> X does nothing (neither tensor is read).
/// In a group of one rank, S, R and P are equal and only a non-view is copied.
/// @throws NotSupported for the other pairs.
void redistribute_flat(Stream& stream, Communicator& comm, Placement from, Placement to, const Tensor& full,
                       const Tensor& slice);

}  // namespace sherd
