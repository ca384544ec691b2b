#include "train_gpt/run/search_bounds.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include <sherd/train/plan/step_time.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/run/search_axes.h"

namespace train_gpt {

using sherd::Outer;
using sherd::Strategy;
using sherd::WorkKind;

namespace {

/// Elements of the model on a rank that nothing shards: of experts, and of the rest.
struct Elements {
  Elements(const ParameterCount& count, const TrainConfig& c) {
    const double all = static_cast<double>(count.all),
                 idle = c.experts > c.expert_top_k
                            ? 1 - static_cast<double>(c.expert_top_k) / static_cast<double>(c.experts)
                            : 1;
    const double of_experts =
        c.experts > c.expert_top_k ? static_cast<double>(count.all - count.active) / idle : 0;
    expert = of_experts / static_cast<double>(c.expert_parallel);
    rest = std::max(0.0, all - of_experts) / static_cast<double>(c.tp);
    trains_all = count.trained == count.all;
  }
  double expert, rest;
  bool trains_all;
};

double best_rate(const std::vector<sherd::SizedRate>& rates) {
  return std::ranges::max_element(rates, {}, &sherd::SizedRate::rate)->rate;
}

/// The profile by which operations of optimizers take a part of their time.
sherd::HardwareProfile with_optimizers(sherd::HardwareProfile hardware, const sherd::DryRecord& record,
                                       double part) {
  std::set<std::string> names;
  for (const sherd::DryEntry& e : record.entries)
    if (e.what.kind == WorkKind::optimizer || e.what.kind == WorkKind::orthogonalize)
      names.insert(e.what.name);
  for (sherd::OperationFactors* factors : {&hardware.factors_16, &hardware.factors_32})
    for (const std::string& name : names) factors->try_emplace(name, 1).first->second *= part;
  return hardware;
}

}  // namespace

Forms::Forms(const TrainConfig& c) {
  const bool own = c.precision != sherd::DType::bf16, host = c.offload == "state,master";
  weight = own ? 4 : 2;
  master = own || host || c.master == sherd::Master::bf16 ? 0 : c.master == sherd::Master::split ? 2 : 4;
  state = c.offload == "none" ? static_cast<double>(size_of(c.state_dtype)) : 0;
  gradient = static_cast<double>(size_of(c.grad_dtype));
}

std::pair<double, double> stored_bytes(const TrainConfig& c, const ParameterCount& count, const Forms& form) {
  const Elements n(count, c);
  const auto shards = static_cast<double>(shards_of(c)),
             of_experts = static_cast<double>(c.ranks / c.expert_parallel),
             outer = c.outer == Outer::optim ? static_cast<double>(c.replicas) : 1;
  const bool shards_state = c.strategy != Strategy::no_shard;
  const double sharded = n.rest / shards + n.expert / of_experts,
               states = shards_state ? n.rest / (shards * outer) + n.expert / of_experts
                                     : n.rest / outer + n.expert / (outer > 1 ? of_experts : 1);
  const double moments = c.optimizer == OptimizerWord::adamw && c.route.empty() ? 2 : 1;
  const double weights = c.strategy == Strategy::optim_grads_params ? sharded : n.rest + n.expert;
  const double trained = n.trains_all ? 1 : 0;
  return {weights * form.weight + trained * states * (form.master + moments * form.state),
          trained * (adds_on_ranks(c) ? n.rest + n.expert : sharded) * form.gradient};
}

LinkTime link_time(const TrainConfig& c, const ParameterCount& count, const sherd::HardwareProfile& h) {
  const Elements n(count, c);
  const auto microbatches = static_cast<double>(c.grad_accum);
  const bool weights = c.strategy == Strategy::optim_grads_params;
  // Blocks but the last are unsharded for the backward, too; the root, with embedding and head, is not.
  const double again = weights && c.reshard_after_forward && c.layers > 2
                           ? static_cast<double>(c.layers - 2) / static_cast<double>(c.layers)
                           : 0;
  const double root = static_cast<double>(2 * vocabulary(c) * c.dim) / static_cast<double>(c.tp);
  const double unshards = weights ? microbatches : c.strategy == Strategy::no_shard ? 0 : 1;
  const double reduces = !n.trains_all ? 0 : adds_on_ranks(c) ? 1 : microbatches;
  LinkTime time;
  const auto add = [&](double elements, double in_blocks, int64_t ranks, int64_t stride) {
    if (ranks < 2) return;
    const int64_t here = std::clamp<int64_t>(h.ranks_per_host / stride, 1, ranks);
    const double moved =
        (1 - 1 / static_cast<double>(ranks)) *
        (unshards * (elements + again * in_blocks) * Forms(c).weight + reduces * elements * 4);
    const double inside = best_rate(h.host.bytes_per_s),
                 between = std::min(inside, static_cast<double>(here) * best_rate(h.network.bytes_per_s));
    if (ranks * stride <= h.ranks_per_host)
      time.host += moved / (inside * h.communication_efficiency);
    else
      time.network += moved / (between * h.communication_efficiency);
  };
  add(n.rest, std::max(0.0, n.rest - root), shards_of(c), c.tp);
  add(n.expert, n.expert, c.ranks / c.expert_parallel, c.expert_parallel);
  return time;
}

LeastMicrobatch shape_of(const sherd::RankForecast& rank, const sherd::HardwareProfile& hardware) {
  const sherd::DryRecord& record = rank.record;
  std::vector<sherd::TraceRecord> records;  // of the entries that are operations and exchanges
  (void)play(record, hardware, &records);
  LeastMicrobatch shape{.seconds = 0, .activations = static_cast<double>(rank.by_class.at("activation"))};
  LeastMicrobatch since;  // the last product; what is before the first and after the last may be once a step
  bool begun = false;
  auto at = records.begin();
  for (const sherd::DryEntry& e : record.entries) {
    const bool exchange = e.kind == sherd::DryEntry::Kind::exchange;
    if (!exchange && e.kind != sherd::DryEntry::Kind::operation) continue;
    const sherd::TraceRecord& r = *at++;
    if (r.kind == WorkKind::update) break;
    if (e.stream != 0) continue;
    const double seconds = (r.end - r.begin) * 1e-6;
    const bool computes = r.kind == WorkKind::product || r.kind == WorkKind::attention ||
                          r.kind == WorkKind::attention_backward;
    if (computes && !std::exchange(begun, true)) since = {};
    if (r.kind != WorkKind::copy && r.kind != WorkKind::optimizer) since.seconds += seconds;
    if (exchange) {
      const std::vector<int>& ranks = *record.exchanges[static_cast<size_t>(e.number)].ranks;
      const bool inside = ranks.front() / hardware.ranks_per_host == ranks.back() / hardware.ranks_per_host;
      (inside ? since.links.host : since.links.network) += seconds;
    }
    if (!computes) continue;
    shape.seconds += since.seconds;
    shape.links = shape.links.with(since.links, 1);
    since = {};
  }
  return shape;
}

LeastTime::LeastTime(const sherd::DryRecord& record, const sherd::HardwareProfile& hardware) {
  std::vector<sherd::TraceRecord> records;
  const double total = play(record, hardware, &records).total;
  seconds = total - seconds_of_memory(record, hardware);  // other candidates may return no memory
  constexpr double kStep = 0.01;
  slope = (total - play(record, with_optimizers(hardware, record, 1 - kStep)).total) / kStep;
  std::map<std::string, double> streams;
  for (const sherd::TraceRecord& r : records)
    if (r.kind == WorkKind::optimizer || r.kind == WorkKind::orthogonalize)
      optimizers += r.stream == record.streams.front() ? (r.end - r.begin) * 1e-6 : 0;
    else if (r.kind != WorkKind::copy)
      streams[r.stream] += (r.end - r.begin) * 1e-6;
  compute = streams[record.streams.front()];
  for (const auto& [name, of_stream] : streams) busiest = std::max(busiest, of_stream);
}

}  // namespace train_gpt
