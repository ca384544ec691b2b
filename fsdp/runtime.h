// What the units of one model share: streams, gather slots, the order of use, the trace.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/model_plan.h>
#include <sherd/fsdp/module.h>
#include <sherd/fsdp/unit.h>
#include <sherd/fsdp/wrap.h>
#include <sherd/kernels/ops/random.h>

namespace sherd {

struct UnitClaim;

/// Made by fully_shard() of the root; owned by the root module. One rank's thread uses it.
class ShardRuntime : public std::enable_shared_from_this<ShardRuntime> {
 public:
  /// Builds the units of every wrapped module below `root`, which is wrapped itself. Collective over the
  /// mesh.
  explicit ShardRuntime(Module& root);
  /// Runs what is queued; units that others hold are detached. Destroyed by an exception that unwinds the
  /// rank, it aborts the group first, so that no rank waits for another.
  ~ShardRuntime();
  ShardRuntime(const ShardRuntime&) = delete;
  ShardRuntime& operator=(const ShardRuntime&) = delete;

  Device& device() const { return device_; }
  const DeviceMesh& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  /// Units in registration order, the root last.
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  /// What was planned for them before anything was allocated.
  const ModelPlan& plan() const { return plan_; }
  /// Every ParamGroup of every unit, in that order.
  std::vector<ParamGroup*> groups() const;

  /// Whether the coming backward is the last of the step: only then are gradients brought to their final
  /// placement. True unless told otherwise (gradient accumulation).
  void set_last_microbatch(bool last) { last_microbatch_ = last; }
  bool last_microbatch() const { return last_microbatch_; }

  /// Gives up the step that runs: gradients of all its microbatches, backwards that are due, the order
  /// recorded by a forward that did not end, whole parameters. After it the model is as after
  /// weights_changed() with the weights that it has: a new step begins with its first forward. Needed once an
  /// exception has ended a forward in training mode or a backward, on whose step nothing goes on; allowed at
  /// any time between steps and passes.
  ///
  /// Collective, and blocks the host: all ranks skip the same batch at the same point. One that skips alone
  /// has left out, or has made in excess, collectives that the others wait for: the communicator's timeout
  /// (or its check of what a collective is for) then ends all ranks.
  /// @throws InvalidArgument inside a forward or backward; ShapeMismatch on every rank when ranks have made
  /// different numbers of steps.
  void reset_step();

  /// @throws ShapeMismatch on every rank, `otherwise` and the ranks that differ, unless all ranks of the mesh pass
  /// the same value. Collective; blocks the host, but waits for no training work.
  void require_equal(uint64_t value, const std::string& otherwise);
  /// What all ranks ought to have alike and nobody compares at once, such as a learning rate: enters served().
  void note_alike(uint64_t value) { alike_ = hash64(alike_ ^ value, {}); }
  /// A digest of what this rank's collectives have served and of what note_alike() was told, for the next
  /// all-reduce that takes it along.
  uint64_t served() const { return hash64(mesh_.world()->digest() ^ alike_, {}); }
  /// Whether served() ought to be compared in this step although no all-reduce of it spans all ranks: in every
  /// 64th, so that ranks which have parted are found without a collective in each step.
  bool comparison_due() const { return steps_ % 64 == 0; }
  /// Set by the device when an all-reduce has told that the ranks' collectives served different things. Shared
  /// with the work that compares.
  const std::shared_ptr<std::atomic<bool>>& ranks_apart() const { return ranks_apart_; }

  /// @throws InvalidArgument naming `who` unless the last microbatch's backward of the root has finished
  /// since weights_changed(); CommError once ranks_apart().
  void require_gradients(const char* who) const;
  /// The compute stream waits until all reductions queued so far are done.
  void wait_gradients();
  /// What is known of this step's gradients: i64 [1] on the device, the same on every rank once the compute
  /// stream has come here, 1 when they are not finite somewhere and the step must not be taken, else 0.
  /// Undefined when nobody has looked since the last step (clip_grad_norm() does).
  const Tensor& skip() const { return skip_; }
  void set_skip(Tensor skip) { skip_ = std::move(skip); }
  /// Must come before work on the compute stream that changes master weights: gathers may still read them.
  void begin_weights_change();
  /// Weights and optimizer states are read elsewhere until `event` (a snapshot, say): the next change waits
  /// for it.
  void hold_weights(const Event& event) { held_ = event; }
  /// Master weights were changed by work on the compute stream: what rests is stale. Also drops the
  /// gradients.
  void weights_changed();

  /// All weights have been written anew on all ranks, from a checkpoint, say: ranks that had parted have come
  /// together. On every rank at the same point, with nothing of the model queued.
  void weights_replaced();

  /// After Communicator::recover(), on every rank: begins a step anew with the weights that are there. Whole
  /// parameters and gradients go, and nothing waits for what was queued before. Collective, and blocks the
  /// host.
  /// @throws Error on every rank when the failure cut an update of the weights off, or came after it on some
  /// ranks and before it on others: the weights are then of no step, and a checkpoint has to be loaded.
  void recovered();

  void record(const char* what, const Unit& unit);
  /// What became of the memory of the units' buffers, for people (BufferSet::describe()).
  std::string describe_buffers() const { return buffers_->describe(); }

  /// Events since the last clear, in host issue order: "unshard X", "forward X", "backward X", "post X".
  const std::vector<std::string>& trace() const { return trace_; }
  void clear_trace() { trace_.clear(); }
  void enable_trace(bool on) { tracing_ = on; }

 private:
  friend class Unit;

  struct Slot {
    int64_t elements;
    DType dtype;
    Tensor buffer;
    MemoryClass kind;
    const char* name;  // of the allocation
    Unit* occupant = nullptr;
    Event free;  // nobody reads or writes the buffer after this
  };
  /// The buffer of slot number `at`, `unit` its occupant, for work on `stream`. Whoever else has it and does
  /// not use it gives it back; while it is used, the unit gets a slot of its own, for good.
  Tensor take_slot(std::vector<Slot>& slots, int& at, int64_t elements, Unit& unit, Stream& stream);

  /// The unit of a claim, its groups built as planned. Collective: makes the communicators of its mesh.
  std::shared_ptr<Unit> make_unit(const UnitClaim& claim, const UnitPlan& plan);
  GroupComms comms_of(const DeviceMesh& mesh, const ShardAxes& axes);
  void assign_slots();
  /// Memory for slots, staging and the buffers of groups.
  void allocate();
  void initialise();
  void check_fingerprints();
  /// @throws Error on every rank unless all have ended the same updates, and none is in the middle of one.
  void check_updates();
  void prefetch(Unit& unit);
  void prefetch_forward(Unit& unit);
  void prefetch_backward(Unit& unit);
  /// Takes down the end of a forward that belongs to the order.
  void end_forward(Unit& unit);
  void finish_backward();
  /// Of all units, for a new step.
  void drop_step();
  /// @throws InvalidArgument when an exception has ended the step.
  void require_whole_step(const std::string& who) const;
  /// A use of a unit, open no more, has ended with an exception.
  void note_cancelled(const Unit& unit, const Unit::Use& use);

  Device& device_;
  DeviceMesh mesh_;
  FullyShardOptions options_;
  // By the communicators of the shard group and of the replicas (null without any).
  std::map<std::pair<const Communicator*, const Communicator*>, GroupComms> comms_;
  std::shared_ptr<Communicator> alone_;  // a group of one, for ignored parameters
  ModelPlan plan_;
  std::vector<std::shared_ptr<Unit>> units_;
  std::vector<Slot> slots_, grad_slots_;
  Staging staging_;
  std::unique_ptr<BufferSet> buffers_;  // of the above and of the groups
  bool last_microbatch_ = true;
  int exceptions_before_ = std::uncaught_exceptions();

  std::vector<Unit*> order_;      // forward order of the last complete forward, root excluded
  std::vector<Unit*> recording_;  // of the forward that runs
  bool follows_order_ = false;    // the running forward matches order_ so far
  std::vector<Unit*> ended_;      // the same units by the end of their forward: backward begins in reverse
  size_t backward_at_ = 0;        // units ended_[backward_at_...] have begun their backward

  int open_ = 0, open_backwards_ = 0;  // uses of all units that are open, and backwards among them
  std::string cancelled_;              // the first use that the exception in flight has ended
  std::string broken_;                 // the use whose exception has ended the step; "": none has
  uint64_t steps_ = 0;                 // weights_changed() and reset_step()

  // Updates of the weights that the compute stream has come to, not those that are queued: what recovered()
  // compares. Shared with the work that counts.
  struct Updates {
    std::atomic<int64_t> begun{0}, ended{0};
  };
  std::shared_ptr<Updates> updates_ = std::make_shared<Updates>();
  bool changing_ = false;  // between begin_weights_change() and weights_changed()

  Tensor skip_;
  uint64_t alike_ = 0;
  std::shared_ptr<std::atomic<bool>> ranks_apart_ = std::make_shared<std::atomic<bool>>(false);
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
