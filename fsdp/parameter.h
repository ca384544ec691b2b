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

namespace sherd {

class ModuleBase;
class ParamGroup;
void assign_names(ModuleBase& root);

/// A handle; copies mean the same parameter. Made by Module::param(), described only: memory comes with
/// fully_shard() of the root. Used by one rank's thread.
class Parameter {
 public:
  Parameter() = default;
  /// As ModuleBase::param(), of no module.
  Parameter(std::string name, Shape shape, Init init);
  /// Parameter number `index` of `views`, which outlive it, of no module and no group: for functions on memory of the
  /// caller's own. Only name(), shape(), trainable(), frozen(), data(), grad() and grad_for_overwrite() mean anything.
  Parameter(std::string name, Shape shape, ParameterViews& views, int index);

  /// Full name in the module tree, e.g. "blocks.0.qkv.weight" (the local name until the root is sharded).
  const std::string& name() const { return state().name; }
  const Shape& shape() const { return state().shape; }
  int64_t numel() const { return numel_of(state().shape); }
  const Init& init() const { return state().init; }
  bool trainable() const { return state().trainable; }
  /// Nothing trains it at present: freeze(), or ShardRuntime::set_frozen() until that thaws it.
  bool frozen() const;
  CutClass cut() const { return state().cut; }
  /// Where it differs from its unit's (FullyShardOptions::compute_dtype).
  const std::optional<DType>& compute_dtype() const { return state().compute_dtype; }
  /// Logical blocks of its rows (q, k and v of a fused projection); empty = one block, the whole matrix. Of a
  /// stack of matrices [count, rows, cols]: the blocks of each of them.
  const RowBlocks& row_blocks() const { return state().row_blocks; }
  /// How this parameter is cut from a larger one, if it is: shape() and everything else here is local to this
  /// rank's piece.
  const std::optional<TensorShard>& tensor_shard() const { return state().tensor_shard; }
  /// Shape of the whole parameter, all tensor- and expert-parallel pieces together.
  Shape global_shape() const;
  /// The elements of a local interval as boxes of the whole parameter.
  std::vector<Box> global_boxes(ParamRange range) const;
  /// The same as contiguous runs of the whole parameter; `local` counts from the parameter's first element.
  std::vector<GlobalRun> global_runs(ParamRange range) const;

  /// Excludes it from training: gathered with its unit, no gradient, no optimizer state.
  /// @throws InvalidArgument after fully_shard() (all set_ functions, too).
  Parameter& freeze();
  Parameter& set_cut(CutClass cut);
  /// The dtype in which data() is, f32 or bf16, whatever its unit's is: norms are kept in f32 in a bf16 unit so, say.
  /// The parameters of one dtype in a unit have a buffer, and collectives, of their own.
  Parameter& set_compute_dtype(DType dtype);
  /// @throws ShapeMismatch when the blocks do not cover every row of the matrix (of a stack: of each matrix)
  /// exactly once.
  Parameter& set_row_blocks(RowBlocks blocks);
  Parameter& set_row_blocks(const std::vector<int64_t>& rows) { return set_row_blocks(stacked_blocks(rows)); }
  /// Declares the parameter to be piece `shard.index` of a larger one; it has the same name on every rank
  /// that holds a piece. Their mesh must have the dimension with as many ranks, checked by fully_shard(); a
  /// single piece needs none.
  /// @throws InvalidArgument for a dimension or an index that does not exist.
  Parameter& set_tensor_shard(TensorShard shard);

  /// The whole parameter in the compute dtype; valid while its unit is unsharded.
  /// @throws InvalidArgument otherwise, saying which unit to unshard.
  Tensor data() const;
  /// The whole gradient, f32; backward adds into it. Valid between the unit's pre_backward and post_backward.
  /// The first to ask for it gets zeros, which the device's compute stream then writes.
  Tensor grad() const;
  /// The same for a writer that can replace as well as add, as ops::gemm does by its own beta: it saves one
  /// write and one read of the gradient. The caller writes every element with the beta that it was given, in
  /// work queued before the gradient is asked for again (by either function).
  GradTarget grad_for_overwrite() const;

  /// This rank's master weights: the flat f32 interval that its layout gives it (may be empty).
  Tensor shard() const;
  /// The same interval of the weights as the model computes with them, where those rest in another dtype:
  /// undefined elsewhere. An optimizer that writes it for every parameter of a group, beside shard(), says so
  /// by ParamGroup::copies_written().
  Tensor model_copy() const;
  /// The reduced, averaged gradient of exactly that interval; valid after the last backward of a step.
  Tensor grad_shard() const;
  /// shard() as a tensor over the mesh. Of a tensor-parallel piece it is the local piece only, as if that
  /// were the whole parameter; global_boxes() says where the piece lies.
  DTensor dtensor() const;
  /// The interval of the parameter that shard() holds.
  ParamRange shard_range() const;

  bool defined() const { return state_ != nullptr; }
  bool sharded() const { return state_ && state_->group != nullptr; }
  ParamGroup& group() const;
  int index_in_group() const { return state().index; }
  /// Same parameter (tied handles compare equal).
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
