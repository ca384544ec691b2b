#include <sherd/optim/adamw.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include <sherd/fsdp/group.h>
#include <sherd/kernels/ops.h>
#include <sherd/optim/detail/rest_segments.h>

namespace sherd {

std::vector<std::string> problems_of(const AdamWOptions& o) {
  std::vector<std::string> wrong;
  for (const auto& [name, beta] : {std::pair("beta1", o.beta1), std::pair("beta2", o.beta2)})
    if (!(beta >= 0 && beta < 1)) wrong.push_back(fmt::format("{} {} must lie in [0, 1)", name, beta));
  if (!(o.eps >= 0 && std::isfinite(o.eps)))
    wrong.push_back(fmt::format("eps {} must be finite and not negative", o.eps));
  return wrong;
}

UpdateRuleFactory AdamW::factory(const AdamWOptions& o) {
  return {.algorithm = Algorithm::adamw,
          .settings = fmt::format("{} {} {}", o.beta1, o.beta2, o.eps),
          .problems = problems_of(o),
          .writes_copies = true,
          .heeds_lr_factor = true,
          .heeds_betas = true,
          .heeds_master = true,
          .heeds_state_dtype = true,
          .heeds_quantized_state = true,
          .heeds_grad_dtype = true,
          .heeds_place = true,
          .heeds_gradient_factor = true,
          .make = [o](Device& device, std::vector<UpdateItem> items) {
            return std::make_unique<AdamW>(device, std::move(items), o);
          }};
}

AdamW::AdamW(Device& device, std::vector<Item> items, AdamWOptions options) : options_(options) {
  std::vector<std::string> wrong = problems_of(options);
  for (const Item& item : items) {
    if (!(item.weight_decay >= 0 && std::isfinite(item.weight_decay)))
      wrong.push_back(fmt::format("weight decay {} of {} must be finite and not negative", item.weight_decay,
                                  item.param.name()));
    for (const std::string& problem : problems_of(item.settings))
      wrong.push_back(fmt::format("{}: {}", item.param.name(), problem));
  }
  if (!wrong.empty()) throw InvalidArgument(fmt::format("AdamW: {}", fmt::join(wrong, "; ")));
  // One slot for each parameter: this rank's pieces of both moments, allocated also when they are empty.
  for (auto& item : items) {
    const size_t rates = rates_of(item);
    ++rates_[rates].end;  // a count for now
    RestState exp_avg = item.make_state(device, "exp_avg", StateCode::floating),
              exp_avg_sq = item.make_state(device, "exp_avg_sq", StateCode::square_root);
    slots_.push_back({std::move(item), std::move(exp_avg), std::move(exp_avg_sq), rates, 0});
  }
  // Slots with equal rates get adjacent step counters, so that one kernel counts them all. `end` turns from
  // a count into a running end.
  int64_t begin = 0;
  for (Rates& r : rates_) {
    r.begin = std::exchange(begin, begin + r.end);
    r.end = r.begin;
  }
  for (Slot& s : slots_) s.counter = rates_[s.rates].end++;
  const auto count = static_cast<int64_t>(slots_.size());
  // Counters are floats on the device, as PyTorch's checkpoints store them. A skipped step does not advance
  // them.
  steps_ = Tensor::empty(device, {count}, DType::f32, MemoryClass::optimizer, "optimizer step");
  biases_ = Tensor::empty(device, {count, 2}, DType::f32, MemoryClass::optimizer, "optimizer step");
  ops::fill(device.compute(), steps_, 0);
}

// Returns the index of the item's rates, which it adds when they are new. Few sets exist, so the search is
// linear.
size_t AdamW::rates_of(const Item& item) {
  const UpdateSettings& s = item.settings;
  const AdamWOptions own{s.beta1.value_or(options_.beta1), s.beta2.value_or(options_.beta2),
                         s.eps.value_or(options_.eps)};
  for (size_t i = 0; i < rates_.size(); ++i)
    if (rates_[i].lr_factor == s.lr_factor && rates_[i].options == own) return i;
  rates_.push_back({s.lr_factor, own});
  return rates_.size() - 1;
}

// Two kernels for each set of rates: one advances the counters and computes bias corrections, one updates
// all parameters with common rest forms and a common dtype of copies.
void AdamW::step(Stream& stream, double lr, const Tensor& skip) {
  // Taken before any return, so that it never applies to a later step.
  const Tensor factor = take_gradient_factor();
  if (slots_.empty()) return;
  RestWindows* const windows = slots_.front().item.windows.get();
  for (size_t r = 0; r < rates_.size(); ++r) {
    const Rates& own = rates_[r];
    const ops::AdamWRates rates{lr * own.lr_factor, own.options.beta1, own.options.beta2, own.options.eps};
    // Segments count their slot from the first one of these rates.
    const Tensor biases = biases_.flat(2 * own.begin, 2 * own.end).view({own.end - own.begin, 2});
    count_updates(stream, r, rates, skip);
    // Keys: the dtype of copies, whether gradients are multiplied by the factor, and rest forms.
    std::map<std::tuple<DType, bool, RestForms>, std::vector<AdamWSegment>> passes;
    RestPass pass(
        windows, stream,
        [&] {
          for (auto& [kind, segments] : passes) {
            const auto& [copies, scaled, forms] = kind;
            ops::adamw(stream, segments, rates, biases, copies, skip, scaled ? factor : Tensor(), forms);
          }
          passes.clear();
        },
        skip);
    for (const Slot& s : slots_) {
      const Parameter& p = s.item.param;
      if (s.rates != r || p.frozen()) continue;
      const Tensor copy = s.item.writes_copy ? p.model_copy() : Tensor(), weights = p.shard(),
                   low = p.shard_low();
      // Ignored parameters are outside the gradient norm, so its factor does not apply to them.
      const GroupPlan& plan = p.group().plan();
      const RestForms forms{plan.master, s.exp_avg.used_dtype(), plan.grad_dtype};
      const std::tuple kind{copy.defined() ? copy.dtype() : DType::f32,
                            factor.defined() && !p.group().replicated(), forms};
      const RestPiece gradient(p.grad_shard());
      const Tensor updates = steps_.flat(s.counter, s.counter + 1);
      pass.parts({weights, low, s.exp_avg, s.exp_avg_sq}, 0, s.exp_avg.values.numel(),
                 [&](int64_t begin, int64_t count) {
                   const auto piece = [&](const RestState& t) {
                     return RestPiece(pass.open(t, begin, count, true, p, updates), begin);
                   };
                   const RestPiece w = piece(weights), halves = piece(low), first = piece(s.exp_avg),
                                   second = piece(s.exp_avg_sq);
                   for (const NoiseRun& run : rest_runs(p, forms, begin, count, updates))
                     passes[kind].push_back({.w = w.at(run.begin),
                                             .m = first.at(run.begin),
                                             .v = second.at(run.begin),
                                             .g = gradient.at(run.begin),
                                             .copy = RestPiece(copy).at(run.begin),
                                             .count = run.count,
                                             .weight_decay = s.item.weight_decay,
                                             .bias = s.counter - own.begin,
                                             .low = static_cast<uint16_t*>(halves.at(run.begin)),
                                             .noise = run.noise});
                 });
    }
    pass.finish();
  }
}

// Before the update, which reads the bias corrections of the step that begins. With `skip` the counters stay.
void AdamW::count_updates(Stream& stream, size_t rates, const ops::AdamWRates& values, const Tensor& skip) {
  std::vector<std::pair<int64_t, int64_t>> counted;  // intervals of counters
  for (const Slot& s : slots_) {
    if (s.rates != rates || s.item.param.frozen()) continue;
    // Adjacent counters are merged; frozen parameters leave gaps.
    if (!counted.empty() && counted.back().second == s.counter) {
      ++counted.back().second;
    } else {
      counted.emplace_back(s.counter, s.counter + 1);
    }
  }
  for (auto& [begin, end] : counted)
    ops::adamw_count(stream, steps_.flat(begin, end), biases_.flat(2 * begin, 2 * end).view({end - begin, 2}),
                     values, skip);
}

std::vector<StateTensor> AdamW::state() const {
  std::vector<StateTensor> out;
  for (auto& s : slots_) {
    out.push_back(state_tensor(s.item.param, "exp_avg", s.exp_avg));
    out.push_back(state_tensor(s.item.param, "exp_avg_sq", s.exp_avg_sq));
  }
  return out;
}

std::vector<StateCounter> AdamW::counters() const {
  std::vector<StateCounter> out;
  for (const Slot& s : slots_) out.push_back({s.item.param, "step", steps_.flat(s.counter, s.counter + 1)});
  return out;
}

}  // namespace sherd
