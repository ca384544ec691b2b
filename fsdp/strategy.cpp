#include <sherd/fsdp/strategy.h>

#include <fmt/format.h>

#include <array>

#include <sherd/base/error.h>

namespace sherd {
namespace {

const Placement R = Replicate(), S = Shard(0), P = Partial();

struct StrategyRow {
  Strategy strategy;
  const char* name;
  const char* alias;
  PlacementRow row;
};
//                                                      param  each microbatch  last  state
const std::array<StrategyRow, 4> kInner = {{
    {Strategy::no_shard, "no_shard", "zero0", {R, P, R, R}},
    {Strategy::optim, "optim", "zero1", {R, P, S, S}},
    {Strategy::optim_grads, "optim_grads", "zero2", {R, S, S, S}},
    {Strategy::optim_grads_params, "optim_grads_params", "zero3", {S, S, S, S}},
}};

struct OuterRow {
  Outer outer;
  const char* name;
  PlacementRow row;
};
const std::array<OuterRow, 2> kOuter = {{
    {Outer::no_shard, "no_shard", {R, P, R, R}},
    {Outer::optim, "optim", {R, P, S, S}},
}};

}  // namespace

Strategy parse_strategy(std::string_view name) {
  for (auto& r : kInner)
    if (name == r.name || name == r.alias) return r.strategy;
  throw InvalidArgument(
      fmt::format("strategy '{}' is unknown; use no_shard, optim, optim_grads, optim_grads_params "
                  "(or zero0, zero1, zero2, zero3)",
                  name));
}

const char* name_of(Strategy s) { return kInner[static_cast<size_t>(s)].name; }
const char* name_of(Outer o) { return kOuter[static_cast<size_t>(o)].name; }

// Returns no_shard's row for a dimension of one rank: it needs no collective under any strategy.
PlacementRow inner_row(Strategy s, int ranks) { return kInner[ranks == 1 ? 0 : static_cast<size_t>(s)].row; }

PlacementRow outer_row(Outer o, int ranks) { return kOuter[ranks == 1 ? 0 : static_cast<size_t>(o)].row; }

}  // namespace sherd
