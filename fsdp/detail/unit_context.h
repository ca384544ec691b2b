// State that the units of one model share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/fsdp/prefetch_order.h>
#include <sherd/fsdp/slots.h>

namespace sherd {

class Bucket;
class Unit;

/// Log of the units' uses, in the order in which the host issues them.
class UseLog {
 public:
  void add(const char* what, const std::string& unit);
  /// Returns a digest of all uses since the last step began. It is equal on ranks that used the same units in
  /// the same order.
  uint64_t digest() const { return digest_; }
  void begin_step() { digest_ = 0; }

  void keep_lines(bool on) { keeps_ = on; }
  const std::vector<std::string>& lines() const { return lines_; }
  void clear_lines() { lines_.clear(); }

 private:
  uint64_t digest_ = 0;
  bool keeps_ = false;
  std::vector<std::string> lines_;
};

/// Shared state of the units. The runtime makes it and outlives every use; it is all that Unit knows of the
/// runtime. Units are indices, as in PrefetchOrder.
///
/// Three streams run concurrently: compute (the device's), gather and reduce. Only events order them, which
/// one stream records and another waits for. The host waits for none of them. For one rank on a CPU, gather and
/// reduce are compute: conversions and sums over microbatches have no collective to overlap with.
struct UnitContext {
  /// `names`: of the units by index, the root's last. `ranks`: of the root's mesh.
  UnitContext(Device& device, int ranks, std::vector<std::string> names, int prefetch, bool overlap_reduce);

  /// @throws InvalidArgument, naming `who`, when an exception has ended the step, or an update before it.
  void require_whole_step(const std::string& who) const;
  void require_whole_weights(const std::string& who) const;
  /// @throws InvalidArgument, naming `who`, where other weights are in the place of the trained ones.
  void require_trained_weights(const std::string& who) const;

  Device& device;
  const std::vector<std::string> names;
  const bool overlap_reduce;
  std::vector<Unit*> units;
  std::vector<Bucket*> buckets;
  /// Completes the gradients that other units still owe the step, before the root's outermost backward ends.
  /// Returns false without gradients, when everything is frozen.
  std::function<bool()> complete_backward;
  bool root_backward = false;  // a backward of the root has ended in this step
  // The last microbatch's backward has ended while recorded forwards of the root still had a pending backward.
  bool awaits_backward = false;
  ForwardRecorder* recorder = nullptr;
  // Remedy in messages: how a user drops a recorded forward, set by the client that recorded the latest one.
  const char* how_to_drop = "";
  bool last_microbatch = true;
  int microbatch = 0;              // passes of the root that have ended in this step
  bool torn = false;               // an exception has ended an update of the weights
  int substitutions = 0;           // scopes of other weights in the place of the trained ones
  int context_ranks = 1;           // that share sequences (FullyShardOptions::context_dim of the root)
  bool context_exchanged = false;  // an attention of this step has exchanged heads over them
  bool hold_gradients = false;     // nothing is reduced before the last microbatch

  PrefetchOrder order;
  UseLog log;
  SlotPool whole;      // for gathered parameters: written on the gather stream, read on compute
  SlotPool gradients;  // for unreduced gradients: written on compute, read on the reduce stream
  Staging staging;

  Event weights_ready;                     // on compute: the master weights are written
  Event reduced;                           // on reduce: the reductions queued so far are done
  std::shared_ptr<Stream> gather, reduce;  // last: they finish before the buffers are freed
};

}  // namespace sherd
