#include <sherd/optim/weight_average.h>

#include <map>
#include <utility>

#include <sherd/fsdp/group.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>
#include <sherd/optim/detail/rest_segments.h>

namespace sherd {
namespace {

Tensor copy_of(Stream& s, const Tensor& t) {
  if (!t.defined()) return t;
  const Tensor copy =
      Tensor::empty(s.device(), t.shape(), t.dtype(), MemoryClass::scratch, "weights beside averages");
  ops::copy(s, copy, t);
  return copy;
}

}  // namespace

WeightAverage::WeightAverage(Device& device, std::vector<UpdateItem> items, double decay, DType dtype)
    : device_(device), decay_(decay) {
  for (UpdateItem& item : items) {
    item.state_dtype = dtype;
    Tensor average = item.make_state(device, "ema");
    slots_.push_back({std::move(item), std::move(average), {}, {}});
  }
  if (dtype == DType::bf16)
    draws_ = Tensor::empty(device, {1}, DType::f32, MemoryClass::optimizer, "optimizer ema");
  restart();
}

void WeightAverage::restart() {
  Stream& s = device_.compute();
  exchanged_ = false;
  for (Slot& slot : slots_) {
    slot.kept = slot.kept_low = Tensor();  // of an exchange that an exception has ended
    const Tensor w = slot.item.param.shard(), low = slot.item.param.shard_low();
    if (slot.average.dtype() == DType::f32)
      ops::read_weights(s, slot.average, w, low);
    else
      ops::write_weights(s, slot.average, {}, low.defined() ? ops::weights_as_f32(s, w, low) : w);
  }
}

void WeightAverage::update(Stream& compute, int64_t steps, const Tensor& skip) {
  if (slots_.empty()) return;
  if (draws_.defined()) ops::fill(compute, draws_, static_cast<double>(steps));
  RestWindows* const windows = slots_.front().item.windows.get();
  // Averages read what the update has stored.
  RestStep step(windows, compute, windows != nullptr ? compute.record() : Event());
  std::map<RestForms, std::vector<AverageSegment>> passes;
  RestPass pass(windows, compute, [&] {
    for (const auto& [forms, segments] : passes) ops::average(compute, segments, decay_, skip, forms);
    passes.clear();
  });
  for (const Slot& slot : slots_) {
    const Parameter& p = slot.item.param;
    if (p.frozen()) continue;
    const Tensor w = p.shard(), low = p.shard_low();
    const RestForms forms{p.group().plan().master, slot.average.dtype()};
    pass.parts({w, low, slot.average}, 0, slot.average.numel(), [&](int64_t begin, int64_t count) {
      const auto piece = [&](const Tensor& t, bool stored) {
        return RestPiece(pass.open(t, begin, count, stored), begin);
      };
      const RestPiece weights = piece(w, false), halves = piece(low, false),
                      average = piece(slot.average, true);
      for (NoiseRun& run : rest_runs(p, {Master::f32, forms.state}, begin, count, draws_)) {
        run.noise.key = hash64(run.noise.key, "ema");  // not the update's
        passes[forms].push_back({.average = average.at(run.begin),
                                 .w = weights.at(run.begin),
                                 .count = run.count,
                                 .low = static_cast<uint16_t*>(halves.at(run.begin)),
                                 .noise = run.noise});
      }
    });
  }
  pass.finish();
  step.end();
}

void WeightAverage::exchange() {
  Stream& s = device_.compute();
  for (Slot& slot : slots_) {
    const Tensor w = slot.item.param.shard(), low = slot.item.param.shard_low();
    if (slot.kept.defined()) {
      ops::copy(s, w, std::exchange(slot.kept, {}));
      if (low.defined()) ops::copy(s, low, std::exchange(slot.kept_low, {}));
    } else if (slot.average.dtype() == (low.defined() ? DType::f32 : w.dtype())) {
      const Tensor weights = low.defined() ? ops::weights_as_f32(s, w, low) : copy_of(s, w);
      ops::write_weights(s, w, low, slot.average);
      ops::copy(s, slot.average, weights);
    } else {
      slot.kept = copy_of(s, w);
      slot.kept_low = copy_of(s, low);
      ops::write_weights(s, w, low, ops::weights_as_f32(s, slot.average, {}));
    }
  }
  exchanged_ = !exchanged_;
}

std::vector<StateTensor> WeightAverage::state() const {
  std::vector<StateTensor> all;
  for (const Slot& slot : slots_)
    all.push_back({slot.item.param, "ema", slot.average, /*averages_weights=*/true});
  return all;
}

}  // namespace sherd
