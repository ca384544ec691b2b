// Parameter: a name, a shape and a rule for its first values; later, views of a group's buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/dtensor/dtensor.h>
#include <sherd/fsdp/init.h>
#include <sherd/fsdp/parameter_views.h>
#include <sherd/fsdp/row_blocks.h>
#include <sherd/fsdp/tensor_shard.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

class ModuleBase;
class ParamGroup;
void assign_names(ModuleBase& root);

/// Handle of a parameter; copies refer to the same parameter. ModuleBase::param() makes it as a description only;
/// fully_shard() of the root allocates memory. One rank's thread uses it.
class Parameter {
 public:
  Parameter() = default;
  /// Same as ModuleBase::param(), without a module.
  Parameter(std::string name, Shape shape, Init init);
  /// Parameter `index` of `views`, which outlive it, without a module or group, for functions on the caller's
  /// own memory. Only name(), shape(), trainable(), frozen(), data(), grad() and grad_for_overwrite() are
  /// valid.
  Parameter(std::string name, Shape shape, ParameterViews& views, int index);

  /// Returns the full name in the module tree, e.g. "blocks.0.qkv.weight" (the local name until the root is
  /// sharded).
  const std::string& name() const { return state().name; }
  const Shape& shape() const { return state().shape; }
  int64_t numel() const { return numel_of(state().shape); }
  const Init& init() const { return state().init; }
  bool trainable() const { return state().trainable; }
  /// Returns whether it is excluded from training at present: by freeze(), or by ShardRuntime::set_frozen()
  /// until thawed.
  bool frozen() const;
  /// Returns the recorder of its model's running forward; null outside of recorded forwards.
  ForwardRecorder* recorder() const;
  CutClass cut() const { return state().cut; }
  /// Returns its own compute dtype, if it differs from its unit's (FullyShardOptions::compute_dtype).
  const std::optional<DType>& compute_dtype() const { return state().compute_dtype; }
  /// Returns its own form of master weights, if it differs from its unit's (FullyShardOptions::master).
  const std::optional<Master>& master() const { return state().master; }
  /// Returns its own place of masters, if it differs from its unit's (FullyShardOptions::master_place).
  const std::optional<Place>& master_place() const { return state().master_place; }
  /// Returns the logical blocks of its rows (q, k and v of a fused projection); empty = one block, the whole
  /// matrix. For a stack of matrices [count, rows, cols] they are the blocks of each matrix.
  const RowBlocks& row_blocks() const { return state().row_blocks; }
  /// Returns the cut of this parameter from a larger one, if any. shape() and all other members are then
  /// local to this rank's piece.
  const std::optional<TensorShard>& tensor_shard() const { return state().tensor_shard; }
  /// Returns the shape of the global parameter, all tensor- and expert-parallel pieces together.
  Shape global_shape() const;
  /// Returns the elements that share a scale in its 8-bit state: sherd::state_block() of the global shape, whatever cuts it.
  int64_t state_block() const;
  /// Returns the elements of a local interval as boxes of the global parameter.
  std::vector<Box> global_boxes(ParamRange range) const;
  /// Returns the same as contiguous runs of the global parameter; `local` counts from the parameter's first
  /// element.
  std::vector<GlobalRun> global_runs(ParamRange range) const;

  /// Excludes it from training: it is gathered with its unit and has no gradient and no optimizer state.
  /// @throws InvalidArgument after fully_shard() (as do all set_ functions).
  Parameter& freeze();
  Parameter& set_cut(CutClass cut);
  /// Sets the dtype of data(), f32 or bf16, independent of its unit's dtype, for example f32 norms in a bf16
  /// unit. The parameters of one dtype in a unit have separate buffers and collectives.
  Parameter& set_compute_dtype(DType dtype);
  /// Sets the form of its master weights, independent of its unit's. f32 for a parameter gathered in f32.
  Parameter& set_master(Master master);
  /// Sets the place of its masters, independent of its unit's.
  Parameter& set_master_place(Place place);
  /// Sets the logical blocks.
  /// @throws ShapeMismatch when the blocks do not cover every row of the matrix (of a stack: of each matrix)
  /// exactly once.
  Parameter& set_row_blocks(RowBlocks blocks);
  Parameter& set_row_blocks(const std::vector<int64_t>& rows) { return set_row_blocks(stacked_blocks(rows)); }
  /// Declares the parameter to be piece `shard.index` of a larger one, with the same name on every rank that
  /// holds a piece. fully_shard() checks that the mesh has the dimension with `parts` ranks; a single piece
  /// needs no dimension.
  /// @throws InvalidArgument for a dimension or an index that does not exist.
  Parameter& set_tensor_shard(TensorShard shard);

  /// Returns the unsharded parameter in the compute dtype; valid while its unit is unsharded.
  /// @throws InvalidArgument otherwise, naming the unit to unshard.
  Tensor data() const;
  /// Returns the unreduced gradient, f32; backward adds into it. Valid between the unit's pre_backward and
  /// post_backward. The first call queues zeros on the device's compute stream.
  Tensor grad() const;
  /// Returns the same for a writer that can overwrite or add, as ops::gemm does by its own beta; this saves
  /// one write and one read of the gradient. The caller writes every element with the returned beta, in
  /// operations queued before the next call of either function.
  GradTarget grad_for_overwrite() const;

  /// Returns this rank's master weights: the flat interval that its layout assigns to it (may be empty). f32, or bf16 where
  /// FullyShardOptions::master is bf16 or split. ops::read_weights() and write_weights() convert between it and f32.
  Tensor shard() const;
  /// Returns the low 16 bits of each element of that interval, as a tensor of bf16 whose values have no meaning; undefined
  /// unless the form is split.
  Tensor shard_low() const;
  /// Returns the same interval of the stored weights in the compute dtype, where fp32 masters are beside it;
  /// undefined elsewhere. An optimizer that writes it beside shard() for every parameter of a group calls
  /// ParamGroup::copies_written().
  Tensor model_copy() const;
  /// Returns the reduced, averaged gradient of exactly that interval, in FullyShardOptions::grad_dtype; valid after the last backward
  /// of a step.
  Tensor grad_shard() const;
  /// Returns shard() as a tensor over the mesh, f32: a copy where weights rest in another form, queued on the compute stream.
  /// For a tensor-parallel piece it is the local piece only, as if
  /// that were the global parameter; global_boxes() gives its place.
  DTensor dtensor() const;
  /// Returns the interval of the parameter that shard() holds.
  ParamRange shard_range() const;

  bool defined() const { return state_ != nullptr; }
  bool sharded() const { return state_ && state_->group != nullptr; }
  ParamGroup& group() const;
  int index_in_group() const { return state().index; }
  /// Returns whether both are the same parameter (tied handles compare equal).
  friend bool operator==(const Parameter& a, const Parameter& b) { return a.state_ == b.state_; }

 private:
  ParameterViews& views() const;

  friend class ModuleBase;
  friend class ParamGroup;
  friend class ShardRuntime;
  friend void assign_names(ModuleBase& root);
  struct State {
    std::string name;
    Shape shape;
    Init init;
    bool trainable = true;
    CutClass cut = CutClass::element;
    std::optional<DType> compute_dtype;
    std::optional<Master> master;
    std::optional<Place> master_place;
    RowBlocks row_blocks;
    std::optional<TensorShard> tensor_shard;
    int registrations = 0;  // modules that hold it (more than one: tied)
    ParamGroup* group = nullptr;
    ParameterViews* views = nullptr;  // of the same group
    int index = 0;
  };
  State& state() const;
  void require_unsharded_tree(const char* what) const;
  void require_memory() const;

  std::shared_ptr<State> state_;
};

}  // namespace sherd
