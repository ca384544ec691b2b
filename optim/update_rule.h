// Update rule: interface and factory of an optimizer beside AdamW and Muon.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/optim/algorithm.h>
#include <sherd/optim/rest_windows.h>
#include <sherd/optim/state.h>
#include <sherd/optim/update_settings.h>

namespace sherd {

/// Parameter that an update rule updates.
struct UpdateItem {
  Parameter param;
  double weight_decay = 0;  // the effective value, from its settings or the options
  /// Write Parameter::model_copy(), where present, in the same pass as shard(). Set only for rules whose
  /// factory supports it; the others leave it to the group, which rounds once more.
  bool writes_copy = false;
  /// Only fields that the rule supports, by its factory, differ from the defaults.
  UpdateSettings settings = {};
  /// dtype of its elementwise state, f32, bf16 or i8: its settings' or the options'; bf16 where that is i8 and the parameter has no
  /// blocks (state_block()).
  DType state_dtype = DType::f32;
  /// Place of its state, likewise.
  Place state_place = Place::device;
  /// Windows for state in 8 bits, and for state, master weights and low halves on the host; null where the optimizer has none.
  std::shared_ptr<RestWindows> windows = {};

  /// Returns state for this rank's elements of it: zero, in its place, announced to the windows. In its dtype; the first function in
  /// bf16 where that is i8.
  Tensor make_state(Device& device, std::string_view key) const;
  RestState make_state(Device& device, std::string_view key, StateCode code) const;
};

/// Update of some parameters in a step, and the state kept from step to step. Optimizer owns one for each
/// algorithm and does the common part: it has the gradients reduced and averaged, clipped or not, decides
/// whether the step is taken, keeps gathers from reading weights that change, and starts the next gradients
/// from zero. One rank's thread calls all functions, in the same order on every rank.
///
/// A rule sees this rank's flat interval of each parameter: Parameter::shard() and Parameter::grad_shard(), which may be
/// empty. Its state has the same interval, zero at first, and is independent of layout and number of ranks, so checkpoints
/// reshard it. Weights and gradients are f32 unless the rule's factory supports other forms.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  /// Queues one update of all its parameters on `compute`, the device's compute stream, without waiting.
  /// Operations on other streams begin after an event of `compute` and end before one that `compute` waits
  /// for.
  /// @param skip ShardRuntime::skip(): i64 [1] in device memory, the same on every rank, possibly undefined.
  /// Only the device knows its value while the step is issued. When it is other than 0, weights, state and
  /// counters stay unchanged, in bits; collectives are the same. Most updating operations take it as an
  /// argument. Parameters that are frozen at present (Parameter::frozen(), known to the host) stay unchanged
  /// as well.
  virtual void step(Stream& compute, double lr, const Tensor& skip) = 0;
  /// Throws the error of an earlier step that the device has found by now; the next step() does so, too. Waits for
  /// nothing: call it after the compute stream has passed that step.
  virtual void require_sound() {}
  /// Sets what the next step() multiplies gradients by, but those of ignored parameters: f32 [1] in device memory;
  /// undefined: 1. Only for rules whose factory supports it.
  void set_gradient_factor(Tensor factor) { gradient_factor_ = std::move(factor); }
  /// Returns every state tensor, by parameter and key, always in the same order; checkpoints save them. Their
  /// memory stays in place while the rule exists; writing it changes the rule.
  virtual std::vector<StateTensor> state() const = 0;
  /// Returns the state of whole matrices, stored on the ranks that compute them.
  virtual std::vector<OwnedState> owned_state() const { return {}; }
  /// Returns every count of updates that it keeps.
  virtual std::vector<StateCounter> counters() const { return {}; }

 protected:
  UpdateRule() = default;
  /// Returns the factor, once.
  Tensor take_gradient_factor() { return std::exchange(gradient_factor_, {}); }

 private:
  Tensor gradient_factor_;
};

/// Factory of an update rule for Optimizer, and the data for its checks.
struct UpdateRuleFactory {
  /// Name in routes.
  Algorithm algorithm = Algorithm::adamw;
  /// All of its options as text, in any form: ranks that differ in it get an error before anything is made.
  std::string settings = {};
  /// All invalid options, each with its value; empty when valid. Optimizer throws them together with all
  /// other errors.
  std::vector<std::string> problems = {};
  /// True if it supports UpdateItem::writes_copy.
  bool writes_copies = false;
  /// True if it supports UpdateSettings::lr_factor, resp. beta1, beta2 and eps. Otherwise Optimizer refuses
  /// parameters whose settings use them.
  bool heeds_lr_factor = false, heeds_betas = false;
  /// True if it updates weights in any form (FullyShardOptions::master), resp. keeps state in UpdateItem::state_dtype. It rounds
  /// with the noise of noise_runs(). Otherwise Optimizer refuses parameters in another form than f32.
  bool heeds_master = false, heeds_state_dtype = false;
  /// True if it also keeps state in 8 bits (UpdateItem::make_state() with a code), and uses it by a RestPass. Otherwise Optimizer
  /// refuses i8.
  bool heeds_quantized_state = false;
  /// True if it reads Parameter::grad_shard() in 16 bits, too. Otherwise Optimizer refuses such parameters
  /// (FullyShardOptions::grad_dtype). Requires heeds_gradient_factor.
  bool heeds_grad_dtype = false;
  /// True if it uses state and master weights by a RestPass. Otherwise Optimizer refuses parameters with any on the host.
  bool heeds_place = false;
  /// True if step() multiplies gradients by the factor that was set. Otherwise Optimizer does so before, in a
  /// pass of its own.
  bool heeds_gradient_factor = false;
  /// Makes the rule for the parameters routed to it (possibly none), in routing order. Called once on every
  /// rank, after the parameters have their memory; may be collective. The device outlives the rule.
  std::function<std::unique_ptr<UpdateRule>(Device& device, std::vector<UpdateItem> items)> make = {};
};

}  // namespace sherd
