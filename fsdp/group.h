// Parameter group: flat buffers that are gathered and reduced together, and their redistributions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/group_plan.h>
#include <sherd/fsdp/options.h>
#include <sherd/fsdp/parameter.h>

namespace sherd {

/// Communicators of one mesh as the runtime uses it: of the shard group (inner) and of the replicas (outer).
/// Gathers and reductions have their own, so that neither blocks the other.
struct GroupComms {
  std::shared_ptr<Communicator> gather_inner, gather_outer;
  std::shared_ptr<Communicator> reduce_inner, reduce_outer;
};

/// The allocation of a planned buffer that collectives use.
inline BufferSpec spec_of(const PlannedBuffer& b) { return {b.elements, b.dtype, b.memory, b.name()}; }

/// Shared scratch for layouts whose communication buffer is not the full buffer, and for reductions in 16
/// bits. One for each stream that uses it; grows to the largest request before training starts.
struct Staging {
  struct Pair {
    Tensor full, half;  // f32, bf16
    Tensor& of(DType dtype) { return dtype == DType::f32 ? full : half; }
    const Tensor& of(DType dtype) const { return dtype == DType::f32 ? full : half; }
  };
  Pair gather, reduce;
};

/// One flat buffer, cut by a ShardLayout into inner parts (shard dimension) and cells (replicate dimension
/// within a part). The verbs below are redistributions between the placements of the strategy table; nothing
/// else knows which strategy runs. All verbs queue on the given stream and return.
class ParamGroup final : public ParameterViews {
 public:
  struct Spec {
    GroupPlan plan;
    std::vector<Parameter> params;  // of the layout, in its order
    DeviceMesh mesh;
    GroupComms comms;  // groups of one for ignored parameters
    /// Of its unit; of a bucket, those of all its units, which say the same of what matters to the group.
    std::vector<FullyShardOptions> options;
    /// By parameter, the names of their units; empty where that is the plan's.
    std::vector<std::string> owners;
  };
  ParamGroup(Device& device, Spec spec);
  /// Parameters that outlive the group have no memory again.
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const std::vector<Parameter>& params() const { return spec_.params; }
  const ShardLayout& layout() const { return *layout_; }
  /// What was planned: groups, layout, buffers.
  const GroupPlan& plan() const { return spec_.plan; }
  /// What the mesh's dimensions mean to the group.
  const ShardAxes& axes() const { return spec_.plan.axes; }
  /// Elements of a parameter in memory.
  struct Piece {
    ParamRange range;
    Tensor values;
  };
  /// The weights of parameter p as they rest between uses, where the next unshard() reads them: the elements that
  /// axes().weights_split gives this rank, in ascending pieces. Behind a publish() they agree with the masters.
  std::vector<Piece> resting(int p) const;
  /// Whether master weights have memory of their own; elsewhere they are a part of what rests.
  bool has_masters() const { return plan().find(BufferUse::master) != nullptr; }
  /// Something that must be equal on all ranks, as messages call it, and a digest of it.
  struct Trait {
    std::string what;
    uint64_t digest;
  };
  /// Layout and options of the group; kind, row blocks, initial values of each parameter and how it is cut from
  /// a larger one.
  std::vector<Trait> traits() const;
  /// Digest of them all.
  uint64_t fingerprint() const;
  const DeviceMesh& mesh() const { return spec_.mesh; }
  /// Its unit's name, or that of the bucket.
  const std::string& unit() const { return spec_.plan.unit; }
  /// The unit that parameter p belongs to.
  const std::string& unit_of(int p) const {
    return spec_.owners.empty() ? unit() : spec_.owners[static_cast<size_t>(p)];
  }
  const FullyShardOptions& options() const { return spec_.options.front(); }
  bool trainable() const { return trainable_; }
  /// Freezes trainable parameter p between steps, or thaws it; no gradient of the group is there. While all are
  /// frozen the group has no gradients and reduces none; zeros travel for those that are frozen beside others.
  void set_frozen(int p, bool frozen);
  /// Ignored parameters: whole on every rank, gradients never reduced.
  bool replicated() const { return spec_.plan.ignored; }
  /// True when the full parameter lives in a gather slot while in use (strategy rests it sharded).
  bool needs_slot() const { return plan().needs_slot(); }
  bool needs_grad_slot() const { return plan().needs_gradient_slot(); }
  /// Elements of the full buffer (and of its gradient) that a slot must hold.
  int64_t full_elements() const { return plan().full_elements(); }
  int64_t staging_elements() const { return plan().buffer_elements(); }
  bool stages_gather() const { return staged_; }
  /// dtype of gradients on the wire of the shard dimension; f32 when nothing travels there.
  DType wire_dtype() const { return plan().wire_dtype; }
  bool stages_reduce() const { return plan().stages_reduce(); }
  /// Mesh dimensions over which gradients and states are sharded, outermost of the layout first.
  const std::vector<std::string>& sharded_over() const { return axes().state_split; }
  /// The rank of the layout that this process is.
  int cell() const { return cell_; }

  /// Communicators of the group's collectives.
  const GroupComms& comms() const { return spec_.comms; }
  /// What allocate() needs beforehand: buffers that are sent from and received into, to be put at `memory`.
  struct Buffer {
    Tensor* memory;
    BufferSpec spec;
  };
  std::vector<Buffer> buffers();
  /// Everything else that lives longer than a step.
  void allocate();
  /// Fills the master weights by each parameter's Init.
  void initialise(Stream& stream, uint64_t seed);

  /// An optimizer has left the new weights in model_copy() of every parameter: the coming publish() need not.
  void copies_written() { copied_ = true; }
  /// Master weights change in some other way.
  void forget_copies() { copied_ = false; }

  // Verbs on parameters.
  /// Brings new master weights to where parameters rest (S -> R over the dimensions the table says).
  void publish(Stream& stream, const Staging& staging);
  /// Rest -> whole. `slot` has full_elements() when needs_slot().
  void unshard(Stream& stream, const Tensor& slot, const Staging& staging);
  /// Ends the use of the whole parameters: data() throws until the next unshard().
  void reshard();
  bool unsharded() const { return full_.defined(); }

  // Verbs on gradients.
  /// Opens the full gradient for backward. Nothing is written where it starts anew: grad() fills what is asked
  /// for, settle_grad() the rest.
  void open_grad(const Tensor& slot);
  /// After a microbatch's backward, before reduce() with the same `last`: `stream` writes zeros where that will
  /// read and nobody has written, which are the gradients that nobody asked for, and padding.
  void settle_grad(Stream& stream, bool last);
  /// After a microbatch's backward: P -> grad_micro, or P -> grad when `last`; then the outer dimension and
  /// the average when `last`.
  void reduce(Stream& stream, bool last, const Staging& staging);
  void close_grad();
  /// The optimizer has used the gradients: the next step starts from zero.
  void reset_grads();
  /// The same of some parameters alone, by number; empty: of none. Gradients that are final stay so for the others;
  /// those that are still summed up go on from zero, which `stream` may have to write, behind the reductions that
  /// it has waited for.
  void release_grads(Stream& stream, const std::vector<bool>& which);
  /// The coming last reduce() makes no final gradient of parameter p, which nobody has asked for.
  void leave_out(int p) { released_[static_cast<size_t>(p)] = true; }
  /// The last reduce() has come, and the gradient of p was not released since.
  bool grad_final(int p) const { return final_ && !released_[static_cast<size_t>(p)] && !frozen(p); }
  /// Of any parameter.
  bool grads_final() const;
  /// Somebody has asked for the gradient of p since it was reset or released.
  bool touched(int p) const { return touched_[static_cast<size_t>(p)]; }

  // ParameterViews.
  bool frozen(int p) const override { return frozen_[static_cast<size_t>(p)]; }
  Tensor data(int p) const override;
  Tensor grad(int p) override;
  GradTarget grad_for_overwrite(int p) override;
  Tensor shard(int p) const override;
  Tensor model_copy(int p) const override;
  Tensor grad_shard(int p) const override;
  ParamRange shard_range(int p) const override;
  DTensor dtensor(int p) const override;

 private:
  uint64_t digest_of_options(const FullyShardOptions& options) const;
  Placement reduce_target(bool last) const { return last ? inner_.grad : inner_.grad_micro; }
  Tensor cell_view(const Tensor& cell, int p) const;
  /// This rank's cell of the part, and its part of the communication buffer.
  Tensor cell_of(const Tensor& part) const { return part.flat(cell_begin_, cell_begin_ + cell_size_); }
  Tensor part_of(const Tensor& whole) const { return whole.flat(part_begin_, part_begin_ + part_); }
  void pack(Stream& stream, const Tensor& comm, const Tensor& full) const;
  void unpack(Stream& stream, const Tensor& full, const Tensor& comm) const;
  /// Sums the open gradient over the shard dimension, P -> R or P -> S. @return this rank's part of the sum:
  /// where it landed, which is grad_part_ itself if that saves a copy, and may be in the wire's dtype elsewhere.
  Tensor sum_whole(Stream& stream, const Tensor& gradient);
  Tensor sum_to_part(Stream& stream, const Tensor& gradient);
  /// What the collective reads: the open gradient, or that brought to the wire's layout and dtype.
  Tensor wire_gradient(Stream& stream, const Staging& staging) const;
  /// Brings the part of a sum to grad_part_, or adds it to what earlier microbatches have left there.
  void accumulate(Stream& stream, const Tensor& part);
  template <class F>
  void for_pieces(F f) const;
  void zero_grad(Stream& stream, int p);

  Device& device_;
  Spec spec_;
  bool trainable_;
  bool trains_;               // some parameter is not frozen
  std::vector<bool> frozen_;  // by parameter
  Purpose weights_, gradients_;  // what the group's collectives serve
  PlacementRow inner_, outer_;
  std::shared_ptr<const ShardLayout> layout_;
  bool staged_ = false;
  int ranks_ = 1;  // data-parallel ranks, the divisor of the average
  int cell_ = 0;
  int64_t part_begin_ = 0, part_ = 0;       // this rank's inner part of the communication buffer
  int64_t cell_begin_ = 0, cell_size_ = 0;  // its cell within the part

  Tensor master_;     // f32, the cell
  Tensor rest_;       // compute dtype: the part (param S) or all of it (param R); undefined when staged and R
  Tensor resident_;   // staged and param R: the contiguous full buffer
  Tensor full_;       // while unsharded
  Tensor grad_full_;  // persistent when grad_micro is P
  Tensor grad_open_;  // during backward
  Tensor grad_part_;  // f32, the part
  bool grads_fresh_ = true;  // nothing accumulated in grad_full_ yet
  // By parameter: its range of the open gradient has not been written since it was opened.
  std::vector<bool> fresh_;
  bool part_fresh_ = true;   // nothing accumulated in grad_part_ yet
  bool copied_ = false;      // rest_ holds this rank's cell of the latest master weights
  std::vector<bool> touched_;
  bool final_ = false;          // the last reduce() has come
  std::vector<bool> released_;  // by parameter, of this step
  std::vector<int> by_place_;  // the parameters in the order in which the full buffer holds them
};

}  // namespace sherd
