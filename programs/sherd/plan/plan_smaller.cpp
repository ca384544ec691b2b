#include "plan_smaller.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "text.h"
#include "train_gpt/run/less_memory.h"

namespace sherd::tools {
namespace {

/// Every set of flags. Sets with both kinds of --offload, or masters that are offloaded and absent, are left out.
std::vector<std::pair<SmallerPlan, PlanRequest>> sets_of_flags(const PlanRequest& base) {
  const std::vector<train_gpt::MemoryFlag> flags = train_gpt::memory_flags(base.config);
  std::vector<std::pair<SmallerPlan, PlanRequest>> all;
  for (size_t set = 1; set < size_t{1} << flags.size(); ++set) {
    SmallerPlan plan;
    PlanRequest request = base;
    bool contradicts = false, offloads = false;
    for (size_t i = 0; i < flags.size(); ++i) {
      if (((set >> i) & 1) == 0) continue;
      const bool offload = flags[i].text.starts_with("--offload");
      contradicts = contradicts || (offload && std::exchange(offloads, true)) ||
                    (flags[i].text == "--master bf16" && request.config.offload == "state,master");
      flags[i].apply(request.config);
      plan.flags += (plan.flags.empty() ? "" : " ") + flags[i].text;
      plan.same_bits = plan.same_bits && flags[i].same_bits;
    }
    if (!contradicts) all.emplace_back(std::move(plan), std::move(request));
  }
  return all;
}

}  // namespace

std::vector<SmallerPlan> plans_that_fit(const PlanRequest& base) {
  std::vector<SmallerPlan> best;  // one with the same bits, one of all
  for (const bool same_bits : {true, false}) {
    for (auto& [smaller, request] : sets_of_flags(base)) {
      if (smaller.same_bits != same_bits) continue;
      smaller.plan = make_plan(request, PlannedRanks::few);
      if (!smaller.plan.fits) continue;
      const auto slower =
          std::ranges::find_if(best, [&](const SmallerPlan& b) { return b.same_bits == same_bits; });
      if (slower == best.end()) {
        if (best.empty() || smaller.plan.time.total < best.front().plan.time.total)
          best.push_back(std::move(smaller));
      } else if (smaller.plan.time.total < slower->plan.time.total) {
        *slower = std::move(smaller);
      }
    }
  }
  return best;
}

std::string smaller_table(const std::vector<SmallerPlan>& plans) {
  if (plans.empty()) return "none of --offload, --master, --state-dtype and --recompute makes it fit\n";
  std::string text;
  for (const SmallerPlan& s : plans)
    text += fmt::format("fits with {}: {}, {} on the host, step {:.2f} ms{}\n", s.flags,
                        bytes_text(s.plan.most_loaded().peak_bytes),
                        bytes_text(s.plan.most_loaded().host_bytes), s.plan.time.total * 1e3,
                        s.same_bits ? ", the same bits" : ", other bits (docs/low_memory.md)");
  return text;
}

}  // namespace sherd::tools
