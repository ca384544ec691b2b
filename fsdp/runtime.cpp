#include <sherd/fsdp/runtime.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include <sherd/fsdp/detail/bucket.h>
#include <sherd/fsdp/detail/rank_comparison.h>
#include <sherd/fsdp/detail/unit_context.h>
#include <sherd/fsdp/detail/update_count.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>

namespace sherd {
ShardRuntime::ShardRuntime(ModuleBase& root)
    : device_(root.wrap_->mesh.world()->device()),
      mesh_(root.wrap_->mesh),
      options_(root.wrap_->options),
      root_options_(root.wrap_->root),
      updates_(std::make_unique<UpdateCount>()),
      sets_(std::make_shared<UpdateSets>(device_.label())) {
  build(root);
  // Marks all copies as stale, so that the first unshard() publishes the initial masters.
  begin_step(nullptr);
  device_.issue_in_order(true);  // until the first step is over
}

ShardRuntime::~ShardRuntime() {
  // The streams finish queued operations before they are destroyed. When an exception ends this rank, peers
  // may never join.
  if (std::uncaught_exceptions() > exceptions_before_)
    mesh_.world()->abort("an error ended its training; its own message tells which");
  // Modules below the root may outlive it with their units, whose buffers the streams still use.
  context_->gather.reset();
  context_->reduce.reset();
  // After the streams: collectives that are queued may use the buffers until then.
  buffers_.reset();
  for (Buffer& b : kept_) b.state().data = Tensor();
  for (auto& u : units_) u->detach();
  buckets_.clear();
}

uint64_t ShardRuntime::noise_seed() const { return groups().front()->seed(); }

void ShardRuntime::set_noise_seed(uint64_t seed) {
  for (ParamGroup* g : groups()) g->set_seed(seed);
}

std::vector<ParamGroup*> ShardRuntime::groups() const {
  std::vector<ParamGroup*> all;
  for (auto& u : units_)
    for (auto& g : u->groups()) all.push_back(g.get());
  for (auto& b : buckets_) all.push_back(&b->group());
  return all;
}

void ShardRuntime::require_equal(uint64_t value, const std::string& otherwise) {
  comparison_->require_equal(value, otherwise);
}

void ShardRuntime::note_alike(uint64_t value) { comparison_->note(value); }

uint64_t ShardRuntime::served() const { return comparison_->served(); }

bool ShardRuntime::comparison_due() { return comparison_->due(steps_); }

const std::shared_ptr<std::atomic<bool>>& ShardRuntime::ranks_apart() const {
  return comparison_->ranks_apart();
}

void ShardRuntime::require_gradients(const char* who, const UpdateSet* set) {
  context_->require_whole_step(who);
  if (*ranks_apart())
    throw CommError(fmt::format(
        "{}: {}: in an earlier step the ranks used different units, the same ones in a different order, "
        "different learning rates, or clip_grad_norm() with different norms or on some ranks alone, so the "
        "weights are not what any of them computed; let every rank make the "
        "same calls in the same order (nccl.check_calls names the first that differs), and load a "
        "checkpoint",
        device_.label(), who));
  // No backward of the root is pending but the last one has not reduced: complete the step with an empty
  // backward. All ranks have dropped the same forwards, so all of them reduce here.
  if (context_->awaits_backward && context_->last_microbatch &&
      context_->order.due(context_->order.root()) == 0)
    empty_backward(*units_.back());
  if (set == nullptr ? has_gradients() : set->ready()) return;
  throw InvalidArgument(
      fmt::format("{}: {} needs final gradients, but {}", device_.label(), who, why_not_final(set)));
}

std::string ShardRuntime::why_not_final(const UpdateSet* set) const {
  std::vector<std::string> reached;  // units whose backward has run
  bool frozen = true;
  for (auto& u : units_)
    for (auto& p : u->params()) {
      if (!p.trainable() || (set != nullptr && !set->holds(p))) continue;
      frozen = frozen && p.frozen();
      if (p.group().touched(p.index_in_group()) && (reached.empty() || reached.back() != u->name()))
        reached.push_back(u->name());
    }
  const int due = context_->order.due(context_->order.root());
  if (frozen) return "all parameters that it would update are frozen; thaw some before the forward";
  if (reached.empty())
    return fmt::format(
        "no backward has reached {} since the previous optimizer step or zero_grad(); run one before it",
        set != nullptr ? "the parameters of this optimizer" : "a parameter");
  if (due > 0)
    return fmt::format(
        "{} recorded forward(s) of the root still have their backward to come, whose gradients would be "
        "missing: {}",
        due, context_->how_to_drop);
  if (!context_->root_backward)
    return fmt::format(
        "the backward of the root has not run, only that of unit(s) '{}', called outside of the root's "
        "forward; call the root, "
        "or call them inside of its forward",
        fmt::join(reached, "', '"));
  return "all backwards since the previous optimizer step were announced as not the last of their step "
         "(Accumulate, "
         "set_last_microbatch(false)); run the last microbatch after the end of that scope";
}

std::string ShardRuntime::pending() const {
  const PrefetchOrder& order = context_->order;
  if (order.open() > 0) return "a forward or backward runs, or weights are unsharded";
  for (int u = 0; u <= order.root(); ++u)
    if (order.due(u) > 0)
      return fmt::format("a forward of unit '{}' was recorded whose backward is still to come: {}",
                         context_->names[static_cast<size_t>(u)], context_->how_to_drop);
  if (const Parameter* p = reached_by_backward(nullptr))
    return fmt::format(
        "gradients of this step are there (parameter '{}', for one); step the optimizer or call "
        "zero_grad() first",
        p->name());
  return "";
}

void ShardRuntime::set_frozen(const std::vector<Parameter>& params, bool frozen) {
  context_->require_whole_step("set_frozen()");
  if (const std::string why = pending(); !why.empty())
    throw InvalidArgument(fmt::format("{}: set_frozen(): {}", device_.label(), why));
  std::vector<std::string> wrong;
  for (const Parameter& p : params)
    if (!p.trainable()) wrong.push_back(p.name());
  if (!wrong.empty())
    throw InvalidArgument(
        fmt::format("{}: set_frozen(): parameters that freeze() has excluded from training have no memory "
                    "for gradients: {}; shard "
                    "the model with them trainable, and freeze them afterwards",
                    device_.label(), fmt::join(wrong, ", ")));
  for (const Parameter& p : params) {
    p.group().set_frozen(p.index_in_group(), frozen);
    // No collective here: ranks that freeze different parameters fail at the next comparison of served().
    note_alike(hash64(frozen ? 1 : 0, p.name()));
  }
}

// Returns whether final gradients exist. Accumulated ones are not final.
bool ShardRuntime::has_gradients() const { return units_.back()->finished() || sets_->any_ready(); }

const Parameter* ShardRuntime::reached_by_backward(const UpdateSet* set) const {
  for (const ParamGroup* g : groups())
    for (const Parameter& p : g->params())
      if (g->touched(p.index_in_group()) && (set == nullptr || set->holds(p))) return &p;
  return nullptr;
}

void ShardRuntime::set_skip(const Tensor& skip) {
  skip_ = skip;
  sets_->set_skip(skip);
}

void ShardRuntime::require_all_in_sets(const char* who) const {
  const std::vector<std::string> alone = sets_->alone(groups());
  if (alone.empty()) return;
  throw InvalidArgument(
      fmt::format("{}: {}: trainable parameters that no optimizer of this root updates: {}; make the "
                  "optimizer that does before "
                  "the first step, or freeze them",
                  device_.label(), who, fmt::join(alone, ", ")));
}

void ShardRuntime::reset_step() {
  if (context_->order.open() > 0)
    throw InvalidArgument(fmt::format(
        "{}: reset_step() inside the forward or backward of a unit; let the exception leave the model "
        "first",
        device_.label()));
  require_equal(++steps_,
                "reset_step() on ranks that have made different numbers of steps; all ranks skip the "
                "same batch");
  wait_gradients();  // reductions that are queued still write what the next step fills
  drop_step(nullptr);
}

void ShardRuntime::zero_grad(UpdateSet* set) {
  if (context_->order.open() > 0)
    throw InvalidArgument(
        fmt::format("{}: zero_grad() inside the forward or backward of a unit", device_.label()));
  context_->require_whole_step("zero_grad()");
  // Only a release of gradients, final or accumulated, enters the digest that ranks compare.
  if ((set == nullptr ? has_gradients() : set->ready()) || reached_by_backward(set) != nullptr)
    note_alike(hash64(static_cast<uint64_t>(sets_->index_of(set)), "zero_grad"));
  wait_gradients();  // reductions that are queued still write what the next step fills
  for (auto& b : buckets_) b->release_gradients(set);
  for (auto& u : units_) u->release_gradients(set);
  forget_gradients(set);
}

void ShardRuntime::forget_gradients(UpdateSet* set) {
  skip_ = Tensor();
  sets_->forget(set);
  if (set == nullptr || !sets_->any_ready()) context_->root_backward = context_->awaits_backward = false;
  if (!context_->root_backward) context_->microbatch = 0;
}

void ShardRuntime::drop_step(UpdateSet* set) {
  forget_gradients(set);
  for (auto& b : buckets_) b->drop_step(set);
  for (auto& u : units_) u->drop_step(set);
  context_->order.reset();
  // The digest of uses covers one step.
  context_->log.begin_step();
  context_->context_exchanged = false;
}

uint64_t ShardRuntime::step() const { return context_->order.step(); }

void ShardRuntime::wait_gradients() { device_.compute().wait(context_->reduced); }

void ShardRuntime::begin_change(WeightsChange& change, UpdateSet* set) {
  if (changing_ != nullptr)
    throw InvalidArgument(fmt::format(
        "{}: WeightsChange: another change of these weights is open; end() it first", device_.label()));
  Stream& compute = device_.compute();
  // An update reads the gradients, which the reduce stream may still be summing.
  compute.wait(context_->reduced);
  // Gathers that are queued (those ahead of a forward that never came, say) read what the change writes.
  compute.wait(context_->gather->record());
  compute.wait(std::exchange(held_, {}));
  if (set == nullptr) device_.wait_for_tier_reads(compute);  // an update waits for what it overwrites
  for (auto* g : groups())
    // copies_written() of an earlier update refers to older weights than those of this change.
    if (set == nullptr || set->holds_some_of(*g)) g->forget_copies();
  // Counted on the stream, after the waits: a failed wait leaves the update as not begun.
  updates_->begin(compute);
  changing_ = &change;
}

void ShardRuntime::end_change(WeightsChange& change, UpdateSet* set, bool whole) {
  // recovered() has closed the change and has begun a step already.
  if (changing_ != &change) return;
  changing_ = nullptr;
  if (whole) {
    updates_->end(device_.compute());
  } else {
    for (auto* g : groups()) g->forget_copies();  // not all may be written
  }
  begin_step(set);
}

void ShardRuntime::begin_step(UpdateSet* set) {
  // Gathers of the new weights wait for this: they read what the compute stream has been asked to write.
  context_->weights_ready = device_.compute().record();
  // The first step is over and has loaded its kernels: streams may issue out of the host's order now. Before
  // drop_step(), which drops the gradients that this tests.
  if (has_gradients()) device_.issue_in_order(false);
  drop_step(set);
  ++steps_;
  const auto changed = [set](const ParamGroup& g) { return set == nullptr || set->holds_some_of(g); };
  for (auto& b : buckets_)
    if (changed(b->group())) b->weights_changed();
  for (auto& u : units_) {
    const auto& params = u->params();
    if (set == nullptr ||
        std::any_of(params.begin(), params.end(), [&](auto& p) { return changed(p.group()); }))
      u->weights_changed();
  }
}

void ShardRuntime::recovered() {
  if (context_->order.open() > 0)
    throw InvalidArgument(fmt::format(
        "{}: recovered() inside the forward or backward of a unit; let the exception leave the model first",
        device_.label()));
  changing_ = nullptr;
  held_ = context_->reduced = {};
  for (auto& u : units_) u->recovered();
  for (auto& b : buckets_) b->recovered();
  context_->whole.forget_events();
  context_->gradients.forget_events();
  context_->order.forget();  // not every rank may have ended the forward that recorded it
  begin_step(nullptr);
  steps_ = 0;  // the ranks may have come to different points of the host's order
  comparison_->recovered(*updates_);
}

void ShardRuntime::weights_replaced() {
  comparison_->replaced();
  // The caller has written all weights on all ranks, so a cut off update has no effect any more.
  context_->torn = false;
  context_->substitutions = 0;
  sets_->weights_replaced();
}

void ShardRuntime::begin_substitution() {
  updates_->begin(device_.compute());  // the change that restores the weights ends it
  ++context_->substitutions;
}

void ShardRuntime::end_substitution(bool restored) {
  --context_->substitutions;
  if (!restored) weights_torn();
}

void ShardRuntime::require_trained_weights(const char* who) const { context_->require_trained_weights(who); }

const Event& ShardRuntime::state_ready() const { return context_->weights_ready; }

void ShardRuntime::weights_torn() noexcept { context_->torn = true; }

void ShardRuntime::require_whole_weights(const char* who) const { context_->require_whole_weights(who); }

void ShardRuntime::set_last_microbatch(bool last) { context_->last_microbatch = last; }

void ShardRuntime::set_hold_gradients(bool hold) { context_->hold_gradients = hold; }

bool ShardRuntime::last_microbatch() const { return context_->last_microbatch; }

const std::vector<std::string>& ShardRuntime::trace() const { return context_->log.lines(); }

void ShardRuntime::clear_trace() { context_->log.clear_lines(); }

void ShardRuntime::enable_trace(bool on) { context_->log.keep_lines(on); }

void ShardRuntime::empty_backward(Unit& unit) {
  // The unit reduces the gradients of earlier microbatches here, or zeros where the step has not used it.
  context_->order.owe_backward(unit.root() ? context_->order.root() : unit.index());
  unit.pre_backward();
  try {
    unit.post_backward();
  } catch (...) {
    unit.cancel_backward();
    throw;
  }
}

bool ShardRuntime::complete_backward() {
  // Runs on the root's last backward, before its reduction. Returns false when all trainable parameters are
  // frozen.
  if (!context_->last_microbatch) return true;
  skip_ = Tensor();  // of other gradients
  const std::vector<const UpdateSet*> absent = sets_->left_out(groups());
  const auto takes_part = [&](const UpdateSet* s) {
    return std::find(absent.begin(), absent.end(), s) == absent.end();
  };
  std::vector<std::string> missing;
  std::set<const Unit*> idle;
  bool any_trainable = false, any_trains = false;
  for (auto& u : units_) {
    bool has_trainable = false, some_take_part = false;
    for (auto& p : u->params()) {
      if (!p.trainable()) continue;
      has_trainable = any_trainable = true;
      if (p.frozen()) continue;
      any_trains = true;
      ParamGroup& g = p.group();
      if (!takes_part(sets_->set_of(p))) {
        g.leave_out(p.index_in_group());
        continue;
      }
      some_take_part = true;
      if (!g.touched(p.index_in_group())) missing.push_back(p.name());
    }
    if (!has_trainable || some_take_part) continue;
    idle.insert(u.get());
    // Clears the marks that backward and leave_out() have set, whether the unit was called or not. None of
    // its gradients is final in this step.
    u->release_gradients(nullptr);
    if (!u->root()) continue;
    // The root's reduction follows this function and marks its group as final, except for parameters left
    // out.
    for (auto& p : u->params())
      if (!p.frozen()) p.group().leave_out(p.index_in_group());
  }
  for (auto& b : buckets_) {
    const std::vector<Parameter>& all = b->group().params();
    b->set_left_out(std::none_of(all.begin(), all.end(),
                                 [&](auto& p) { return !p.frozen() && takes_part(sets_->set_of(p)); }));
  }
  if (!missing.empty() && !root_options_.allow_unused)
    throw InvalidArgument(
        fmt::format("{}: no backward of this step touched the gradient of {} parameter(s): {}; run their "
                    "backward, freeze them, or set RootOptions::allow_unused",
                    device_.label(), missing.size(), fmt::join(missing, ", ")));
  // Usage that differs from rank to rank would pair one unit's collectives with another's.
  if (root_options_.allow_unused || sets_->count() > 1)
    require_equal(context_->log.digest(),
                  "the ranks used different units in this step; what is unused must be so on every rank");
  for (auto& u : units_)
    if (!u->root() && u->suspended())
      throw InvalidArgument(fmt::format(
          "{}: the root's backward ends before one of unit '{}', which was called outside of the root's "
          "forward; call it inside",
          device_.label(), u->name()));
  // Units that no backward of this microbatch reached still owe their collectives.
  for (auto& u : units_) {
    // Sets left out send nothing, on every rank.
    if (u->root() || u->finished() || idle.contains(u.get())) continue;
    empty_backward(*u);
  }
  if (context_->context_ranks > 1 && !context_->context_exchanged)
    throw InvalidArgument(
        fmt::format("{}: the {} ranks of mesh dimension '{}' share sequences, but no attention of this step "
                    "has exchanged heads "
                    "over them, so each would have trained on its slices as on sequences of their own; set "
                    "nn::AttentionOptions::context (libtorch: call sherd::torch::context_attention()), or "
                    "multiply the dimension into shard_dim",
                    device_.label(), context_->context_ranks, options_.context_dim));
  sets_->set_ready(absent);
  return any_trains || !any_trainable;
}

}  // namespace sherd
