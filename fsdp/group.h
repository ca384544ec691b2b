// Parameter group: flat buffers that are gathered and reduced together, and their redistributions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/group_plan.h>
#include <sherd/fsdp/options.h>
#include <sherd/fsdp/parameter.h>

namespace sherd {

/// Communicators of one mesh for the runtime: of the shard group (inner) and of the replicas (outer). Gathers
/// and reductions have separate ones, so that neither blocks the other.
struct GroupComms {
  std::shared_ptr<Communicator> gather_inner, gather_outer;
  std::shared_ptr<Communicator> reduce_inner, reduce_outer;
};

/// Returns the allocation of a planned buffer that collectives use.
inline BufferSpec spec_of(const PlannedBuffer& b) { return {b.elements, b.dtype, b.memory, b.name()}; }

/// Shared scratch memory for layouts whose communication buffer is not the full buffer, and for 16-bit
/// reductions. There is one for each stream that uses it, as large as the largest request before training
/// starts.
struct Staging {
  struct Pair {
    Tensor full, half;  // f32, bf16
    Tensor& of(DType dtype) { return dtype == DType::f32 ? full : half; }
    const Tensor& of(DType dtype) const { return dtype == DType::f32 ? full : half; }
  };
  Pair gather, reduce;
  Tensor zero;  // f32 [1], where a group rounds gradients: the count of their noise, whose key has the step
};

/// One flat buffer, cut by a ShardLayout into inner parts (shard dimension) and cells (replicate dimension
/// within a part). Its verbs are redistributions between the placements of the strategy table; no other class
/// depends on the strategy. All verbs queue on the given stream and return.
class ParamGroup final : public ParameterViews {
 public:
  struct Spec {
    GroupPlan plan;
    std::vector<Parameter> params;  // of the layout, in its order
    DeviceMesh mesh;
    GroupComms comms;  // groups of one rank for ignored parameters
    /// Options of its unit. For a bucket: those of all its units, which agree in what the group uses.
    std::vector<FullyShardOptions> options;
    /// Unit names by parameter; empty where all are the plan's unit.
    std::vector<std::string> owners;
    ForwardRecorder* const* recorder = nullptr;  // where the model keeps it
  };
  ParamGroup(Device& device, Spec spec);
  /// Removes the memory of parameters that outlive the group.
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const std::vector<Parameter>& params() const { return spec_.params; }
  const ShardLayout& layout() const { return *layout_; }
  /// Returns the plan: groups, layout, buffers.
  const GroupPlan& plan() const { return spec_.plan; }
  /// Returns the meaning of the mesh's dimensions for the group.
  const ShardAxes& axes() const { return spec_.plan.axes; }
  /// Elements of a parameter in memory.
  struct Piece {
    ParamRange range;
    Tensor values;
  };
  /// Returns the stored weights of parameter p between uses, which the next unshard() reads: the elements
  /// that axes().weights_split gives this rank, in ascending pieces. After a publish() they agree with the
  /// master weights.
  std::vector<Piece> resting(int p) const;
  /// Returns whether master weights have memory of their own; otherwise they are a part of the stored
  /// weights.
  bool has_masters() const { return plan().find(BufferUse::master) != nullptr; }
  /// Property that must be equal on all ranks: its name in messages and a digest of it.
  struct Trait {
    std::string what;
    uint64_t digest;
  };
  /// Returns the traits: layout and options of the group; kind, row blocks, initial values and tensor shard
  /// of each parameter.
  std::vector<Trait> traits() const;
  /// Returns a digest of all traits.
  uint64_t fingerprint() const;
  const DeviceMesh& mesh() const { return spec_.mesh; }
  /// Returns the name of its unit, or of the bucket.
  const std::string& unit() const { return spec_.plan.unit; }
  /// Returns the name of the unit that parameter p belongs to.
  const std::string& unit_of(int p) const {
    return spec_.owners.empty() ? unit() : spec_.owners[static_cast<size_t>(p)];
  }
  const FullyShardOptions& options() const { return spec_.options.front(); }
  bool trainable() const { return trainable_; }
  /// Freezes or thaws trainable parameter p, between steps, while the group has no gradient. When all are
  /// frozen, the group has no gradients and reduces none. Otherwise zeros are sent for the frozen ones.
  void set_frozen(int p, bool frozen);
  /// Returns whether the parameters are ignored: unsharded on every rank, gradients never reduced.
  bool replicated() const { return spec_.plan.ignored; }
  /// Returns whether unsharded parameters are in a gather slot while in use (the strategy stores them
  /// sharded).
  bool needs_slot() const { return plan().needs_slot(); }
  bool needs_grad_slot() const { return plan().needs_gradient_slot(); }
  /// Returns whether gradients stay unreduced on each rank until the last microbatch.
  bool reduces_once() const { return inner_.grad_micro.is_partial(); }
  /// Returns the elements of the full buffer, which a slot must hold.
  int64_t full_elements() const { return plan().full_elements(); }
  /// Returns the elements that a gradient slot must have for the group; 0 where it needs none.
  int64_t grad_slot_elements() const { return needs_grad_slot() ? plan().open_elements() : 0; }
  int64_t staging_elements() const { return plan().buffer_elements(); }
  bool stages_gather() const { return staged_; }
  /// Returns the dtype in which the shard dimension transfers gradients; f32 when it transfers none.
  DType wire_dtype() const { return plan().wire_dtype; }
  bool stages_reduce() const { return plan().stages_reduce(); }
  /// Returns the mesh dimensions over which gradients and states are sharded, outermost of the layout first.
  const std::vector<std::string>& sharded_over() const { return axes().state_split; }
  /// Returns this process's rank in the layout.
  int cell() const { return cell_; }

  /// Returns the communicators of the group's collectives.
  const GroupComms& comms() const { return spec_.comms; }
  /// Buffers that collectives send from or receive into. The caller puts them at `memory` before allocate().
  struct Buffer {
    Tensor* memory;
    BufferSpec spec;
  };
  std::vector<Buffer> buffers();
  /// Allocates all other memory that is kept longer than a step.
  void allocate();
  /// Fills the master weights by each parameter's Init, computed in f32.
  void initialise(Stream& stream, uint64_t seed);
  /// Returns the seed of its initial values, and of the noise of its updates.
  uint64_t seed() const { return seed_; }
  /// Sets the steps of parameter p's optimizer, on which the noise of its gradient in 16 bits depends. Zero without one: the noise
  /// of an element is then the same in every step.
  void set_updates(int p, int64_t steps) { updates_[static_cast<size_t>(p)] = steps; }
  void set_seed(uint64_t seed) { seed_ = seed; }

  /// Declares that an optimizer has written the new weights to model_copy() of every parameter. The next
  /// publish() skips the conversion.
  void copies_written() { copied_ = true; }
  /// Declares that master weights changed in another way.
  void forget_copies() { copied_ = false; }

  // Verbs on parameters.
  /// Copies new master weights to the stored weights (S -> R over the dimensions that the table names).
  void publish(Stream& stream, const Staging& staging);
  /// Unshards the stored weights. `slot` has full_elements() when needs_slot().
  void unshard(Stream& stream, const Tensor& slot, const Staging& staging);
  /// Ends the use of the unsharded parameters: data() throws until the next unshard().
  void reshard();
  bool unsharded() const { return full_.defined(); }

  // Verbs on gradients.
  /// Opens the unreduced gradient for backward. It writes no zeros when accumulation starts: grad() fills the
  /// requested ranges, settle_grad() the rest.
  void open_grad(const Tensor& slot);
  /// Fills with zeros on `stream` the unwritten elements that the next reduce() with the same `last` reads:
  /// gradients that were not requested, and padding. Call it after a microbatch's backward.
  void settle_grad(Stream& stream, bool last);
  /// Reduces a microbatch's gradient: P -> grad_micro, or P -> grad when `last`. When `last` it also reduces
  /// over the outer dimension and averages.
  /// @param microbatch index in the step, for the noise of what is kept in 16 bits
  void reduce(Stream& stream, bool last, int microbatch, const Staging& staging);
  void close_grad();
  /// Releases the gradients after the optimizer has used them: the next step starts from zero.
  void reset_grads();
  /// Releases the gradients of the parameters with `which[p]`; of none when `which` is empty. Final gradients
  /// of the others stay final. Gradients still being accumulated restart from zero; `stream` may write these
  /// zeros, after the reductions that it has waited for.
  void release_grads(Stream& stream, const std::vector<bool>& which);
  /// Excludes parameter p, whose gradient was not requested, from the final gradients of the next last
  /// reduce().
  void leave_out(int p) { released_[static_cast<size_t>(p)] = true; }
  /// Returns whether the last reduce() has run and the gradient of p was not released since.
  bool grad_final(int p) const { return final_ && !released_[static_cast<size_t>(p)] && !frozen(p); }
  /// Returns whether any parameter's gradient is final.
  bool grads_final() const;
  /// Returns whether the gradient of p was requested since it was reset or released.
  bool touched(int p) const { return touched_[static_cast<size_t>(p)]; }

  // ParameterViews.
  bool frozen(int p) const override { return frozen_[static_cast<size_t>(p)]; }
  ForwardRecorder* recorder() const override { return spec_.recorder != nullptr ? *spec_.recorder : nullptr; }
  Tensor data(int p) const override;
  Tensor grad(int p) override;
  GradTarget grad_for_overwrite(int p) override;
  Tensor shard(int p) const override;
  Tensor shard_low(int p) const override;
  Tensor model_copy(int p) const override;
  Tensor grad_shard(int p) const override;
  ParamRange shard_range(int p) const override;
  DTensor dtensor(int p) const override;

 private:
  uint64_t digest_of_options(const FullyShardOptions& options) const;
  Placement reduce_target(bool last) const { return last ? inner_.grad : inner_.grad_micro; }
  Tensor cell_view(const Tensor& cell, int p) const;
  /// Return this rank's cell of the part, and its part of the communication buffer.
  Tensor cell_of(const Tensor& part) const { return part.flat(cell_begin_, cell_begin_ + cell_size_); }
  Tensor part_of(const Tensor& whole) const { return whole.flat(part_begin_, part_begin_ + part_); }
  void pack(Stream& stream, const Tensor& comm, const Tensor& full) const;
  void unpack(Stream& stream, const Tensor& full, const Tensor& comm) const;
  /// Sums the open gradient over the shard dimension, P -> R or P -> S. @return this rank's part of the sum,
  /// at the place where it was received: grad_part_ itself if that saves a copy; otherwise possibly in the
  /// wire dtype.
  Tensor sum_whole(Stream& stream, const Tensor& gradient);
  Tensor sum_to_part(Stream& stream, const Tensor& gradient);
  /// Returns the collective's input: the open gradient, or a copy in the layout and dtype of the wire.
  Tensor wire_gradient(Stream& stream, const Staging& staging) const;
  /// Returns whether gradients are kept in 16 bits.
  bool rounds_gradients() const { return plan().grad_dtype != DType::f32; }
  void reduce_rounded(Stream& stream, bool last, int microbatch, const Staging& staging);
  enum class Kept { whole, part, cell };  // of the full buffer, of this rank's part and of its cell of it
  /// Calls f(parameter, elements, their place in the range) for the elements of parameters.
  template <class F>
  void for_kept(Kept range, F f) const;
  /// Copies the part of a sum to grad_part_, or adds it to the sum of earlier microbatches there.
  void accumulate(Stream& stream, const Tensor& part);
  template <class F>
  void for_pieces(F f) const;
  void zero_grad(Stream& stream, int p);

  Device& device_;
  Spec spec_;
  bool trainable_;
  bool trains_;                  // at least one parameter is not frozen
  std::vector<bool> frozen_;     // by parameter
  Purpose weights_, gradients_;  // purposes of the group's collectives
  PlacementRow inner_, outer_;
  std::shared_ptr<const ShardLayout> layout_;
  bool staged_ = false;
  int ranks_ = 1;  // data-parallel ranks, the divisor of the average
  int cell_ = 0;
  int64_t part_begin_ = 0, part_ = 0;       // this rank's inner part of the communication buffer
  int64_t cell_begin_ = 0, cell_size_ = 0;  // its cell within the part

  uint64_t seed_ = 0;
  Tensor master_;     // the cell, in the masters' dtype
  Tensor low_;        // low halves of it where the form is split
  Tensor rest_;       // compute dtype: the part (param S) or all of it (param R); undefined when staged and R
  Tensor resident_;   // staged and param R: the contiguous full buffer
  Tensor full_;       // while unsharded
  Tensor grad_full_;  // persistent when grad_micro is P; in the plan's grad_dtype, as grad_part_
  Tensor grad_open_;  // during backward
  Tensor grad_part_;  // the part
  std::vector<int64_t> updates_;  // by parameter
  bool grads_fresh_ = true;       // nothing is accumulated in grad_full_ yet
  // Per parameter: true while its range of the open gradient is unwritten.
  std::vector<bool> fresh_;
  bool part_fresh_ = true;  // nothing is accumulated in grad_part_ yet
  bool copied_ = false;     // rest_ holds this rank's cell of the latest master weights
  std::vector<bool> touched_;
  bool final_ = false;          // the last reduce() has run
  std::vector<bool> released_;  // by parameter, of this step
  std::vector<int> by_place_;   // parameters in the order of the full buffer
};

}  // namespace sherd
