// Update rule: interface and factory of an optimizer beside AdamW and Muon.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/optim/algorithm.h>
#include <sherd/optim/state.h>
#include <sherd/optim/update_settings.h>

namespace sherd {

/// A parameter that an update rule was given.
struct UpdateItem {
  Parameter param;
  double weight_decay = 0;  // what holds for it, its settings' or the options'
  /// Whether Parameter::model_copy(), where there is one, is to be written in the same pass as shard(). Asked
  /// only of those whose factory says that they can; the others leave it to the group, which rounds once
  /// more.
  bool writes_copy = false;
  /// Only what the factory says that the rule heeds differs from the defaults.
  UpdateSettings settings = {};
};

/// How some of the parameters change in a step, and what is remembered of them from step to step. Optimizer
/// owns one for each algorithm and does what all of them need: it has the gradients reduced and averaged,
/// clipped or not, decides whether the step is taken, keeps gathers from reading weights that change, and
/// starts the next gradients from zero. One rank's thread calls all functions, in the same order on every
/// rank.
///
/// A rule sees of each parameter this rank's flat f32 interval: Parameter::shard() and
/// Parameter::grad_shard(), which may be empty. Its state has the same interval, zero at first, and no layout
/// or number of ranks shows in it, so checkpoints carry it to any other arrangement of ranks.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  /// Queues one update of all its parameters on `compute`, the device's compute stream, and waits for
  /// nothing. Work on other streams begins after an event of `compute` and ends before one that `compute`
  /// waits for.
  /// @param skip ShardRuntime::skip(): i64 [1] in device memory, the same on every rank, perhaps undefined.
  /// The device alone knows its value while the step is issued. When it is other than 0, weights, state and
  /// counters stay as they are, in bits; collectives are the same as ever. Most operations that update take
  /// it along. Those of parameters that are frozen at present (Parameter::frozen(), known to the host) stay as they are
  /// as well.
  virtual void step(Stream& compute, double lr, const Tensor& skip) = 0;
  /// Every tensor that it remembers, by parameter and key, in an order that is always the same: what a
  /// checkpoint saves. Their memory stays where it is as long as the rule lives; writing it changes the rule.
  virtual std::vector<StateTensor> state() const = 0;
  /// Every number of updates that it keeps.
  virtual std::vector<StateCounter> counters() const { return {}; }

 protected:
  UpdateRule() = default;
};

/// How Optimizer gets an update rule, and what it checks beforehand.
struct UpdateRuleFactory {
  /// What routes call it.
  Algorithm algorithm = Algorithm::adamw;
  /// All of its options as text, in any form: ranks that differ in it are told, before anything is made.
  std::string settings = {};
  /// What of the options cannot be, each with its value; empty when all is well. Optimizer throws them
  /// together with all other problems.
  std::vector<std::string> problems = {};
  /// Whether it heeds UpdateItem::writes_copy.
  bool writes_copies = false;
  /// Whether it heeds UpdateSettings::lr_factor, and beta1, beta2 and eps. Where it does not, Optimizer refuses
  /// parameters whose settings ask for it.
  bool heeds_lr_factor = false, heeds_betas = false;
  /// Makes the rule for the parameters that are routed to it, in routing order; perhaps none. Called once on
  /// every rank, after the parameters have their memory; may be collective. The device outlives the rule.
  std::function<std::unique_ptr<UpdateRule>(Device& device, std::vector<UpdateItem> items)> make = {};
};

}  // namespace sherd
