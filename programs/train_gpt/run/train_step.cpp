// One training step: queued without waiting, collected later.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sherd/base/program.h>
#include <sherd/kernels/ops.h>
#include <sherd/train/guards/slow_rank.h>

#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {
namespace {

using namespace sherd;
using Clock = PendingStep::Clock;

double ms(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

template <class... Args>
void warn_formatted(fmt::format_string<Args...> format, Args&&... args) {
  print_error("train_gpt", fmt::format(format, std::forward<Args>(args)...));
}

// Returns the time at which the device reaches this point.
std::shared_ptr<Clock::time_point> stamp(Stream& stream) {
  auto at = std::make_shared<Clock::time_point>();
  stream.submit("timestamp",
                [at](ExecutionContext& context) { context.after([at] { *at = Clock::now(); }); });
  return at;
}

// Returns host memory that receives the content of `on_device`.
Tensor copy_behind(Stream& stream, const Tensor& on_device) {
  Tensor host = Tensor::host(stream.device(), on_device.shape(), on_device.dtype(), "metrics");
  ops::copy(stream, host, on_device);
  return host;
}

// The one all-reduce of a step that spans all ranks under every strategy takes the largest of four words:
// live bytes on any rank until the device gets here (kernels take scratch memory when they run); the digest
// of what the ranks' collectives have served and its complement, which gives the smallest; and the wish of a
// rank to stop, read as late as that.
enum Word : size_t { kPeakBytes, kServed, kNotServed, kStop, kWords };
Tensor reduced_words(Stream& stream, Communicator& world, uint64_t served,
                     const std::shared_ptr<StopAgreement>& stop) {
  Device& device = stream.device();
  const Tensor host = Tensor::host(device, {kWords}, DType::i64, "metrics");
  const auto digest = static_cast<int64_t>(served);
  host.data<int64_t>()[kServed] = digest;
  host.data<int64_t>()[kNotServed] = ~digest;
  stream.submit("peak bytes", [&device, at = host.data<int64_t>(), stop](ExecutionContext& context) {
    context.after([&device, at, stop] {
      at[kPeakBytes] = device.allocator().peak_bytes();
      at[kStop] = stop ? stop->want() : 0;
    });
  });
  const Tensor words = Tensor::empty(device, {kWords}, DType::i64, "metrics");
  ops::copy(stream, words, host);
  world.all_reduce(stream, words, ReduceOp::max);
  ops::copy(stream, host, words);
  return host;
}

}  // namespace

CommCounts minus(CommCounts after, const CommCounts& before) {
  for (auto& [name, count] : before) {
    after[name].calls -= count.calls;
    after[name].bytes -= count.bytes;
  }
  std::erase_if(after, [](auto& c) { return c.second.calls == 0; });
  return after;
}

Trainer::StepRows Trainer::rows_of_step() const {
  StepRows rows;
  for (int64_t i = 0; i < config_.batch; ++i) {
    const int64_t window = windows_->train_window(sequences_ + i, seed_);
    rows.learned += windows_->learned(window);
    rows.places += windows_->places(window);
  }
  return rows;
}

PendingStep Trainer::issue_step() {
  PendingStep p;
  p.issued = Clock::now();
  Device& device = *rank_.device;
  Stream& s = device.compute();
  const CommCounts before = rank_.world->counts();
  if (!updated_ && arrivals_.empty()) arrivals_ = rank_.world->arrivals();  // arrivals before training
  const int64_t waits = device.host_syncs(std::this_thread::get_id());
  ShardRuntime& runtime = runtime_of(model_);
  const int64_t micro = config_.microbatch();
  const bool mtp = config_.mtp_weight > 0;
  const Tensor loss_sum = Tensor::empty(device, {mtp ? 2 : 1}, DType::f64, "metrics");
  ops::fill(s, loss_sum, 0);
  model_.set_training(true);
  // Gradients are averaged over the data-parallel ranks: means over what the step learns, and over its rows, on all of
  // them.
  const StepRows step_rows = rows_of_step();
  p.learned = step_rows.learned;
  const auto mean_over = [&](int64_t rows) {
    return rows == config_.batch * config_.seq
               ? static_cast<float>(config_.context) /
                     static_cast<float>(micro * config_.seq * config_.grad_accum)
               : static_cast<float>(config_.data_ranks() * config_.context) / static_cast<float>(rows);
  };
  const nn::ObjectiveScale scale(mean_over(step_rows.learned), mean_over(step_rows.places));
  for (int64_t m = 0; m < config_.grad_accum; ++m) {
    std::vector<int64_t> windows;
    const int64_t first = data_->rank() * micro * config_.grad_accum + m * micro;
    for (int64_t i = 0; i < micro; ++i)
      windows.push_back(windows_->train_window(sequences_ + first + i, seed_));
    Batch batch = load(windows);
    if (mtp) {
      batch.next.scale = scale.loss * static_cast<float>(config_.mtp_weight);
      batch.next.loss_sum = loss_sum.flat(1, 2);
    }
    runtime.set_last_microbatch(m + 1 == config_.grad_accum);
    const nn::CrossEntropy loss =
        model_(tape_.input(batch.inputs), batch.targets, scale, batch.documents, batch.next);
    ops::accumulate_sum(s, loss_sum.flat(0, 1), loss.losses);
    tape_.backward(loss.objective);
  }
  p.stats = clip_grad_norm(model_, config_.grad_clip, {.in_update = true});
  // Before the update, which a non-finite loss on any rank skips.
  losses_->all_reduce(s, loss_sum);
  if (config_.skip_non_finite) skip_unless_finite(model_, loss_sum.flat(0, 1));
  p.reduced = stamp(s);
  p.result.lr = learning_rate(schedule_of(config_), step_);
  const Tensor skip = config_.skip_non_finite ? runtime.skip() : Tensor();
  optimizer_->step(p.result.lr);
  model_.update_selection_bias(skip);
  p.updated = stamp(s);

  p.loss = copy_behind(s, loss_sum);
  p.words = reduced_words(s, *rank_.world, runtime.served(), stop_);
  p.result.comm = minus(rank_.world->counts(), before);
  for (auto& [name, count] : std::exchange(carried_, {})) {
    p.result.comm[name].calls += count.calls;
    p.result.comm[name].bytes += count.bytes;
  }
  p.statuses = muon_->copy_statuses();
  p.skipped = optimizer_->copy_skipped();
  p.done = s.record();
  p.result.step = ++step_;
  p.sequences = sequences_;
  sequences_ += config_.batch;
  if (config_.has_tokens()) p.result.epoch = windows_->epochs(sequences_);
  p.result.host_syncs = device.host_syncs(std::this_thread::get_id()) - waits;
  return p;
}

StepResult Trainer::collect(PendingStep p) {
  p.done.synchronize();
  optimizer_->require_sound();
  const auto tokens = static_cast<double>(config_.batch * config_.seq);
  StepResult r = p.result;
  const double* const losses = p.loss.data<double>();
  r.loss = losses[0] / static_cast<double>(p.learned);
  if (p.loss.numel() > 1) r.mtp_loss = losses[1] / static_cast<double>(p.learned);
  collected_sequences_ = p.sequences;
  count_skipped(r, p);
  warn_about_skipped_updates(p, r.skipped);
  const Clock::time_point begin = updated_ ? std::max(*updated_, p.issued) : p.issued;
  updated_ = *p.updated;
  ArrivalTotals arrivals = rank_.world->arrivals();
  r.arrivals = since(arrivals_, arrivals);
  arrivals_ = std::move(arrivals);
  r.step_ms = ms(*p.updated - begin);
  r.optim_ms = ms(*p.updated - *p.reduced);
  r.tokens_per_s = tokens / r.step_ms * 1e3;
  r.grad_norm = p.stats->norm;
  r.num_zeros = p.stats->zeros;
  const int64_t* const words = p.words.data<int64_t>();
  r.peak_bytes = words[kPeakBytes];
  if (stop_) stop_->hear(words[kStop]);
  if (words[kServed] != ~words[kNotServed])
    throw CommError(
        fmt::format("step {}: the ranks used different units, the same ones in a different order, or "
                    "different learning rates, "
                    "so the weights are mixed; --nccl-check-calls names the first call that differs",
                    r.step));
  return r;
}

void Trainer::count_skipped(StepResult& r, const PendingStep& p) {
  r.skipped_steps = *p.skipped.data<int64_t>();
  r.skipped = skips_.count(r.step, r.skipped_steps);
  if (!r.skipped || rank_.world->rank() != 0) return;
  std::string why = "the gradient norm is not finite (larger than fp32 can hold)";
  if (p.stats->non_finite > 0)
    why = fmt::format("the gradient norm is not finite ({} elements are inf or NaN)", p.stats->non_finite);
  else if (!std::isfinite(r.loss) && std::isfinite(p.stats->norm))
    why = fmt::format("the loss is {}", std::isnan(r.loss) ? "NaN" : "infinite");
  warn_formatted(
      "step {} was skipped on all ranks: {}; weights and optimizer states stay as they were ({} consecutive, "
      "{} of this run)",
      r.step, why, skips_.in_a_row(), r.skipped_steps);
}

void Trainer::warn_about_skipped_updates(const PendingStep& p, bool whole_step) {
  const int64_t step = p.result.step;
  std::vector<std::string> names;  // of a whole step that was skipped
  for (auto& [name, status] : muon_->report(p.statuses)) {
    if (status == MatrixStatus::not_finite && whole_step) names.push_back(name);
    if (status == MatrixStatus::not_finite && !whole_step)
      warn_formatted("step {}: {} has no finite Muon update; it was skipped", step, name);
    if (status == MatrixStatus::zero && zeros_seen_.insert(name).second)
      warn_formatted("step {}: the Muon update of {} is zero (said once)", step, name);
  }
  if (names.empty()) return;
  constexpr size_t kMostNames = 3;
  const size_t more = names.size() - std::min(names.size(), kMostNames);
  names.resize(names.size() - more);
  warn_formatted("step {}: not finite were the gradients of {}{}", step, fmt::join(names, ", "),
                 more > 0 ? fmt::format(" and {} more matrices", more) : "");
}

}  // namespace train_gpt
