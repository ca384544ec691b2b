// What the units of one model share: streams, gather slots, the order of use, the trace.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/module.h>
#include <sherd/fsdp/unit.h>

namespace sherd {

/// What a fully_shard() call asked for, kept at its module until the root's call.
struct Wrap {
  DeviceMesh mesh;
  FullyShardOptions options;
};

/// Made by fully_shard() of the root; owned by the root module's units. One rank's thread uses it.
class ShardRuntime {
 public:
  /// Builds the units of every wrapped module below `root`, which is wrapped itself. Collective over the
  /// mesh.
  explicit ShardRuntime(Module& root);
  /// Runs what is queued. Destroyed by an exception that unwinds the rank, it aborts the group first, so that
  /// no rank waits for another.
  ~ShardRuntime();
  ShardRuntime(const ShardRuntime&) = delete;
  ShardRuntime& operator=(const ShardRuntime&) = delete;

  Device& device() const { return device_; }
  const DeviceMesh& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  /// Units in registration order, the root last.
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  /// Every ParamGroup of every unit, in that order.
  std::vector<ParamGroup*> groups() const;

  /// Whether the coming backward is the last of the step: only then are gradients brought to their final
  /// placement. True unless told otherwise (gradient accumulation).
  void set_last_microbatch(bool last) { last_microbatch_ = last; }
  bool last_microbatch() const { return last_microbatch_; }

  /// @throws InvalidArgument naming `who` unless the last microbatch's backward of the root has finished
  /// since weights_changed().
  void require_gradients(const char* who) const;
  /// The compute stream waits until all reductions queued so far are done.
  void wait_gradients();
  /// Must come before work on the compute stream that changes master weights: gathers may still read them.
  void begin_weights_change();
  /// Weights and optimizer states are read elsewhere until `event` (a snapshot, say): the next change waits
  /// for it.
  void hold_weights(const Event& event) { held_ = event; }
  /// Master weights were changed by work on the compute stream: what rests is stale. Also drops the
  /// gradients.
  void weights_changed();

  void record(const char* what, const Unit& unit);
  /// Events since the last clear, in host issue order: "unshard X", "forward X", "backward X", "post X".
  const std::vector<std::string>& trace() const { return trace_; }
  void clear_trace() { trace_.clear(); }
  void enable_trace(bool on) { tracing_ = on; }

 private:
  friend class Unit;

  struct Slot {
    Tensor buffer;
    Unit* occupant = nullptr;
    Event free;  // nobody reads or writes the buffer after this
  };

  std::shared_ptr<Unit> make_unit(Module& module, const std::string& name, int position, bool root);
  std::unique_ptr<ParamGroup> make_group(ParamGroup::Spec spec);
  const GroupComms& comms_of(const Wrap& wrap);
  void assign_slots();
  void initialise();
  /// @throws InvalidArgument naming every parameter that is not the piece its mesh says, or
  /// that is cut over a dimension its unit shards or reduces over.
  void check_tensor_shards() const;
  void check_fingerprints();
  /// Throws on every rank unless all ranks pass the same value. Blocks the host.
  void require_equal(uint64_t value, const std::string& otherwise);
  void prefetch(Unit& unit);
  void prefetch_forward(Unit& unit);
  void prefetch_backward(Unit& unit);
  void finish_backward();

  Device& device_;
  DeviceMesh mesh_;
  FullyShardOptions options_;
  // By the communicators of the shard and of the replicate dimension (null without one).
  std::map<std::pair<const Communicator*, const Communicator*>, GroupComms> comms_;
  std::shared_ptr<Communicator> alone_;  // a group of one, for ignored parameters
  // Layouts of whole parameters carry each rank's cost on from unit to unit in the order in which units are
  // made: backward, the root last; a unit has few matrices, so ties go to the rank with less cost. By shard
  // communicator and number of ranks.
  std::map<std::pair<const Communicator*, int>, std::vector<double>> packed_cost_;
  std::vector<std::shared_ptr<Unit>> units_;
  std::vector<Slot> slots_, grad_slots_;
  Staging staging_;
  bool last_microbatch_ = true;
  int exceptions_before_ = std::uncaught_exceptions();

  std::vector<Unit*> order_;      // forward order of the last complete forward, root excluded
  std::vector<Unit*> recording_;  // of the forward that runs
  bool follows_order_ = false;    // the running forward matches order_ so far
  std::vector<Unit*> ended_;      // the same units by the end of their forward: backward begins in reverse
  size_t backward_at_ = 0;        // units ended_[backward_at_...] have begun their backward

  uint64_t use_digest_ = 0;  // of the units' collectives since the last step, in order
  bool tracing_ = false;
  std::vector<std::string> trace_;
  Event weights_ready_, reduced_, held_;
  // Comparisons between ranks do not queue behind work that may wait for a rank that went another way.
  std::shared_ptr<Communicator> check_comm_;
  Tensor check_buffer_;
  std::unique_ptr<Stream> check_;
  std::unique_ptr<Stream> gather_, reduce_;  // last: they finish before the buffers go
};

}  // namespace sherd
