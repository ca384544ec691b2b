// One step: issued as a whole, waited for later.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include <sherd/kernels/ops.h>

#include "trainer.h"

namespace train_gpt {
namespace {

using namespace sherd;
using Clock = PendingStep::Clock;

double ms(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// When the device got here.
std::shared_ptr<Clock::time_point> stamp(Stream& stream) {
  auto at = std::make_shared<Clock::time_point>();
  stream.submit("timestamp",
                [at](ExecutionContext& context) { context.after([at] { *at = Clock::now(); }); });
  return at;
}

// What `on_device` will hold, in host memory.
Tensor copy_behind(Stream& stream, const Tensor& on_device) {
  Tensor host = Tensor::host(stream.device(), on_device.shape(), on_device.dtype(), "metrics");
  ops::copy(stream, host, on_device);
  return host;
}

// The largest number of live bytes on any rank until the device gets here: kernels take scratch memory when
// they run.
Tensor peak_bytes(Stream& stream, Communicator& world) {
  Device& device = stream.device();
  const Tensor host = Tensor::host(device, {1}, DType::i64, "metrics");
  stream.submit("peak bytes", [&device, at = host.data<int64_t>()](ExecutionContext& context) {
    context.after([&device, at] { *at = device.allocator().peak_bytes(); });
  });
  const Tensor peak = Tensor::empty(device, {1}, DType::i64, "metrics");
  ops::copy(stream, peak, host);
  world.all_reduce(stream, peak, ReduceOp::max);
  ops::copy(stream, host, peak);
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

PendingStep Trainer::issue_step() {
  PendingStep p;
  p.issued = Clock::now();
  Device& device = *rank_.device;
  Stream& s = device.compute();
  const CommCounts before = rank_.world->counts();
  const int64_t waits = device.host_syncs(std::this_thread::get_id());
  ShardRuntime& runtime = runtime_of(model_);
  const int64_t micro = config_.batch / (config_.data_ranks() * config_.grad_accum);
  const Tensor loss_sum = Tensor::empty(device, {1}, DType::f64, "metrics");
  ops::fill(s, loss_sum, 0);
  model_.set_training(true);
  model_.set_loss_scale(1.0f / static_cast<float>(micro * config_.seq * config_.grad_accum));
  for (int64_t m = 0; m < config_.grad_accum; ++m) {
    std::vector<int64_t> windows;
    const int64_t first = data_->rank() * micro * config_.grad_accum + m * micro;
    for (int64_t i = 0; i < micro; ++i) windows.push_back(windows_->train_window(sequences_ + first + i));
    const Batch batch = load(windows);
    model_.set_targets(batch.targets);
    runtime.set_last_microbatch(m + 1 == config_.grad_accum);
    const Tensor losses = model_(batch.inputs);
    ops::accumulate_sum(s, loss_sum, losses);
    model_.run_backward({});
  }
  p.stats = clip_grad_norm(model_, config_.grad_clip);
  p.reduced = stamp(s);
  p.result.lr = learning_rate(config_, step_);
  optimizer_->step(p.result.lr);
  p.updated = stamp(s);

  p.result.comm = minus(rank_.world->counts(), before);
  for (auto& [name, count] : std::exchange(carried_, {})) {
    p.result.comm[name].calls += count.calls;
    p.result.comm[name].bytes += count.bytes;
  }
  data_->all_reduce(s, loss_sum);
  p.loss = copy_behind(s, loss_sum);
  p.peak = peak_bytes(s, *rank_.world);
  p.statuses = optimizer_->muon().copy_statuses();
  p.done = s.record();
  p.result.step = ++step_;
  sequences_ += config_.batch;
  p.result.host_syncs = device.host_syncs(std::this_thread::get_id()) - waits;
  return p;
}

StepResult Trainer::collect(PendingStep p) {
  p.done.synchronize();
  warn_about_skipped_updates(p);
  const auto tokens = static_cast<double>(config_.batch * config_.seq);
  StepResult r = std::move(p.result);
  const Clock::time_point begin = updated_ ? std::max(*updated_, p.issued) : p.issued;
  updated_ = *p.updated;
  r.step_ms = ms(*p.updated - begin);
  r.optim_ms = ms(*p.updated - *p.reduced);
  r.tokens_per_s = tokens / r.step_ms * 1e3;
  r.loss = *p.loss.data<double>() / tokens;
  r.grad_norm = p.stats->norm;
  r.num_zeros = p.stats->zeros;
  r.peak_bytes = *p.peak.data<int64_t>();
  return r;
}

void Trainer::warn_about_skipped_updates(const PendingStep& p) {
  const int64_t step = p.result.step;
  for (auto& [name, status] : optimizer_->muon().report(p.statuses)) {
    if (status == MatrixStatus::not_finite)
      fmt::print(stderr, "train_gpt: step {}: {} has no finite Muon update; it was skipped\n", step, name);
    if (status == MatrixStatus::zero && zeros_seen_.insert(name).second)
      fmt::print(stderr, "train_gpt: step {}: the Muon update of {} is zero (said once)\n", step, name);
  }
}

}  // namespace train_gpt
