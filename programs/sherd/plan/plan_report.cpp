#include "plan_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "text.h"

namespace sherd::tools {

using nlohmann::ordered_json;

namespace {

std::string ms(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

std::string heading(const PlanRequest& r, const Plan& p) {
  const train_gpt::TrainConfig& c = r.config;
  std::string text = fmt::format(
      "{} parameters, {} active; {:.2f} GFLOP per token\n{} of {}; {}{}{}; layout {}; {}; {}{}{}\n",
      p.parameters, p.active_parameters, p.flops_per_token / 1e9, count_text(c.ranks * r.pipeline, "rank"),
      r.hardware.name, name_of(*c.strategy),
      c.replicas > 1 ? fmt::format(", {} replicas, outer {}", c.replicas, name_of(c.outer)) : "",
      (r.pipeline > 1 ? fmt::format(", {} stages", r.pipeline) : "") +
          (c.context > 1 ? fmt::format(", sequences on {} ranks", c.context) : ""),
      word_of(c.layout), train_gpt::word_of(c.precision), word_of(c.optimizer),
      c.optimizer == train_gpt::OptimizerWord::muon ? fmt::format(" {}", name_of(c.muon_mode)) : "",
      c.recompute == train_gpt::Recompute::none ? "" : fmt::format("; recompute {}", word_of(c.recompute)));
  return text + fmt::format("{} sequences of {} tokens per step, {} microbatch{}\n\n", c.batch, c.seq,
                            c.grad_accum, c.grad_accum == 1 ? "" : "es");
}

std::string memory_table(const PlanRequest& r, const Plan& p) {
  const RankForecast &most = p.ranks.front(), &least = p.ranks.back();
  std::string text = fmt::format("  {:<22}{:>14}{:>14}\n", "memory at the peak",
                                 fmt::format("rank {}", most.rank), fmt::format("rank {}", least.rank));
  for (const auto& [name, bytes] : most.by_class)
    text +=
        fmt::format("  {:<22}{:>14}{:>14}\n", name, bytes_text(bytes), bytes_text(least.by_class.at(name)));
  text += fmt::format("  {:<22}{:>14}{:>14}\n", "peak without slack", bytes_text(most.peak_bytes),
                      bytes_text(least.peak_bytes));
  if (most.host_bytes + least.host_bytes > 0)
    text += fmt::format("  {:<22}{:>14}{:>14}\n", "on the host", bytes_text(most.host_bytes),
                        bytes_text(least.host_bytes));
  return text + fmt::format("  {} in 99 % of {} of a rank\n\n", p.fits ? "fits" : "DOES NOT FIT",
                            bytes_text(r.memory_bytes()));
}

}  // namespace

std::string plan_table(const PlanRequest& r, const Plan& p) {
  std::string text = heading(r, p) + memory_table(r, p);
  text += fmt::format("  {:<22}{:>10}{:>10}{:>14}\n", "collectives of a step", "link", "calls", "bytes");
  for (const PlannedCollective& c : p.most_loaded().collectives)
    text += fmt::format("  {:<22}{:>10}{:>10}{:>14}\n", c.name, c.link, c.calls, bytes_text(c.bytes));
  text += fmt::format("\n  step {}: compute {}, exposed communication {}, optimizer {}\n", ms(p.time.total),
                      ms(p.time.compute), ms(p.time.exposed_communication), ms(p.time.optimizer));
  text += fmt::format("  {:.0f} tokens/s, {:.1f} TFLOP/s of a rank{}; Newton-Schulz {:.2f} TFLOP\n",
                      p.tokens_per_s, p.flops_per_s / 1e12,
                      p.mfu ? fmt::format(", MFU {:.1f} %", 100 * *p.mfu) : "",
                      p.most_loaded().newton_schulz_flops / 1e12);
  for (const std::string& note : p.notes) text += "note: " + note + "\n";
  return text;
}

ordered_json plan_json(const PlanRequest& r, const Plan& p) {
  ordered_json ranks = ordered_json::array(), collectives = ordered_json::array();
  for (const RankForecast& f : p.ranks)
    ranks.push_back({{"rank", f.rank},
                     {"peak_bytes", f.peak_bytes},
                     {"host_bytes", f.host_bytes},
                     {"by_class", f.by_class}});
  for (const PlannedCollective& c : p.most_loaded().collectives)
    collectives.push_back({{"name", c.name}, {"link", c.link}, {"calls", c.calls}, {"bytes", c.bytes}});
  return {{"parameters", p.parameters},
          {"active_parameters", p.active_parameters},
          {"flops_per_token", p.flops_per_token},
          {"strategy", name_of(*r.config.strategy)},
          {"layout", word_of(r.config.layout)},
          {"muon_mode", r.config.optimizer == train_gpt::OptimizerWord::muon
                            ? ordered_json(name_of(r.config.muon_mode))
                            : ordered_json()},
          {"ranks", std::move(ranks)},
          {"collectives", std::move(collectives)},
          {"newton_schulz_flops", p.most_loaded().newton_schulz_flops},
          {"step_ms",
           {{"total", p.time.total * 1e3},
            {"compute", p.time.compute * 1e3},
            {"exposed_communication", p.time.exposed_communication * 1e3},
            {"optimizer", p.time.optimizer * 1e3}}},
          {"tokens_per_s", p.tokens_per_s},
          {"mfu", p.mfu ? ordered_json(*p.mfu) : ordered_json()},
          {"fits", p.fits},
          {"notes", p.notes}};
}

const char* const kPlanJsonHelp = R"(--json prints one object:
  parameters, active_parameters   elements of the whole model, and of those that a token meets
  flops_per_token                 of the model, forward and backward, by formula
  strategy, layout, muon_mode     muon_mode null without Muon
  ranks        [{rank, peak_bytes, host_bytes, by_class {name: bytes}}], by descending peak_bytes; by_class at the time of the
               peak, slack: what the allocator keeps above it; host_bytes: what --offload and --recompute offload put on the host, at most
  collectives  [{name, link, calls, bytes}] of the most loaded rank in a step; link host or network; bytes received
  newton_schulz_flops             of that rank in a step
  step_ms      {total, compute, exposed_communication, optimizer}, of the slowest of the ranks
  tokens_per_s of all ranks
  mfu          part of the profile's dense peak of products in the run's precision; null where it is unknown, as of CPUs
  fits, notes  true or false; assumptions
With --compare also: candidates, an array of such objects with why, the fastest that fits first. without_optimizer: the
rest does not fit already, so that the plan leaves Muon's memory, calls and time out.
With --search instead:
  arrangements, too_large   of ranks, strategy, microbatches and recomputation; of them by a bound
  dry_runs, bound_ms, fits  no run that fits is faster than bound_ms
  ended_early               whether the budget of dry runs ended
  run, program              of the fastest: words of train_gpt's command, lines of C++
  best, candidates          [{flags, step_ms, bytes, host_bytes, fits, same_bits}]: the five to choose from, and all that had a dry run
  others                    [{change, fastest, ended_early}]: without a constraint, or with more ranks; fastest is null where nothing fits
)";

}  // namespace sherd::tools
