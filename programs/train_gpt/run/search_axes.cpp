#include "train_gpt/run/search_axes.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "train_gpt/settings/optimizer_config.h"

namespace train_gpt {

using sherd::DType;
using sherd::Outer;
using sherd::Strategy;

const std::vector<std::string> kSearched = {"tp",     "context",     "expert_parallel", "replicas",
                                            "outer",  "strategy",    "grad_accum",      "recompute",
                                            "layout", "prefetch",    "muon_mode",       "muon_working",
                                            "master", "state_dtype", "grad_dtype",      "offload"};

namespace {

/// The run itself, and those with other values of a setting.
template <class T, class Range = std::vector<T>>
Configs with_each(const TrainConfig& c, T Settings::*member, const Range& values) {
  Configs all = {c};
  for (const auto& value : values) {
    if (value == c.*member) continue;
    all.push_back(c);
    all.back().*member = value;
  }
  return all;
}

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

constexpr const char* kUnnamed = "FOLDER";

bool is_muon(const TrainConfig& c) { return c.optimizer == OptimizerWord::muon; }

/// On a CPU what is offloaded is a file in a folder, which the user names.
Configs with_folder(Configs all, const Constraints& limits) {
  for (TrainConfig& c : all) {
    const bool offloaded = c.offload != "none" || c.recompute == Recompute::offload;
    if (c.device == sherd::DeviceKind::cpu && offloaded && c.offload_folder.empty())
      c.offload_folder = kUnnamed;
  }
  if (limits.names_no_folder)
    std::erase_if(all, [](const TrainConfig& c) { return c.offload_folder == kUnnamed; });
  return all;
}

}  // namespace

int64_t shards_of(const TrainConfig& c) { return c.data_ranks() * c.context / c.replicas; }

bool adds_on_ranks(const TrainConfig& c) {
  return c.strategy == Strategy::no_shard || c.strategy == Strategy::optim;
}

/// Whether replicas leave the bits of sums over ranks as they are (docs/training.md, "Equal bits").
bool sums_alike(const TrainConfig& a, const TrainConfig& b) {
  const auto as_flat = [](const TrainConfig& c) {
    return c.replicas == 1 ||
           (c.data_ranks() % c.replicas == 0 && std::has_single_bit(static_cast<uint64_t>(shards_of(c))));
  };
  return a.replicas == b.replicas ||
         (b.grad_accum == 1 && b.experts == 0 && b.context == 1 && as_flat(a) && as_flat(b));
}

Configs choices(size_t axis, const TrainConfig& c, const Constraints& limits, int64_t ranks_per_host) {
  if (limits.fixed.contains(kSearched[axis])) return {c};
  const bool bits = limits.keep_bits, bf16 = c.precision == DType::bf16;
  switch (axis) {
    case 0: {  // between products rows are on all ranks of a matrix
      Configs all = with_each(
          c, &Settings::tp, divisors(bits ? 1 : c.ranks, limits.max_tp > 0 ? limits.max_tp : ranks_per_host));
      if (!c.model.empty() && !limits.fixed.contains("sequence_parallel"))
        for (TrainConfig& o : all) o.sequence_parallel = o.tp > 1 && (c.sequence_parallel || o.tp != c.tp);
      return all;
    }
    case 1:
      return with_each(c, &Settings::context,
                       divisors(bits ? 1 : c.ranks / c.tp, std::min(ranks_per_host, c.seq)));
    case 2:
      return with_each(c, &Settings::expert_parallel,
                       divisors(bits || c.experts == 0 ? 1 : std::gcd(c.ranks, c.experts), c.ranks));
    case 3: {
      Configs all = with_each(c, &Settings::replicas, divisors(c.data_ranks(), c.ranks));
      if (bits) std::erase_if(all, [&](const TrainConfig& o) { return !sums_alike(o, c); });
      return all;
    }
    case 4:
      if (c.replicas == 1) return {c};
      return with_each(c, &Settings::outer, std::vector{Outer::no_shard, Outer::optim});
    case 5: {
      if (shards_of(c) == 1 && c.experts == 0) return {c};
      Configs all = with_each(c, &Settings::strategy,
                              std::vector{Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                          Strategy::optim_grads_params});
      if (bits && c.grad_accum > 1)
        std::erase_if(all, [&](const TrainConfig& o) { return adds_on_ranks(o) != adds_on_ranks(c); });
      return all;
    }
    case 6:
      return with_each(
          c, &Settings::grad_accum,
          divisors(bits || c.batch % c.data_ranks() != 0 ? 1 : c.batch / c.data_ranks(), c.batch));
    case 7:
      return with_folder(with_each(c, &Settings::recompute,
                                   std::vector{Recompute::none, Recompute::blocks, Recompute::offload}),
                         limits);
    case 8:
      // Without whole matrices layouts differ in padding alone, of which ragged has least.
      if (c.optimizer == OptimizerWord::adamw && c.route.empty() && c.layout == LayoutWord::ragged)
        return {c};
      if (c.strategy == Strategy::no_shard && c.outer == Outer::no_shard) return {c};
      return with_each(c, &Settings::layout,
                       std::vector{LayoutWord::ragged, LayoutWord::even_rows, LayoutWord::whole_param});
    case 9:
      if (c.strategy != Strategy::optim_grads_params) return {c};
      return with_each(c, &Settings::prefetch, std::vector<int64_t>{0, 1, 2});
    case 10: {
      if (!is_muon(c)) return {c};
      Configs all = with_each(c, &Settings::muon_mode, std::vector{sherd::MatrixMode::gather});
      if (!bits && c.muon_mode == sherd::MatrixMode::automatic && !c.muon_allow_inexact) {
        all.push_back(c);
        all.back().muon_allow_inexact = true;
      }
      return all;
    }
    case 11:
      if (!is_muon(c) || bits) return {c};
      return with_each(c, &Settings::muon_working, std::vector{DType::f32, DType::bf16, DType::f16});
    case 12:
      if (!bf16 || bits) return {c};
      return with_each(c, &Settings::master,
                       std::vector{sherd::Master::f32, sherd::Master::split, sherd::Master::bf16});
    case 13:
      if (bits) return {c};
      return with_each(c, &Settings::state_dtype,
                       uses(c, OptimizerWord::soap) ? std::vector{DType::f32, DType::bf16}
                                                    : std::vector{DType::f32, DType::bf16, DType::i8});
    case 14:
      return bits ? Configs{c} : with_each(c, &Settings::grad_dtype, std::vector{DType::f32, DType::bf16});
    default: {
      const bool masters = bf16 && c.master != sherd::Master::bf16;
      return with_folder(with_each(c, &Settings::offload,
                                   masters ? std::vector<std::string>{"none", "state", "state,master"}
                                           : std::vector<std::string>{"none", "state"}),
                         limits);
    }
  }
}

bool divides(const TrainConfig& c) {
  const int64_t shared = c.tp * c.context;
  return c.ranks % shared == 0 && c.data_ranks() % c.replicas == 0 &&
         c.batch % (c.data_ranks() * c.grad_accum) == 0 && c.heads % shared == 0;
}

}  // namespace train_gpt
