#include "measure.h"

#include <map>
#include <string>
#include <utility>

#include <sherd/comm/launcher.h>
#include <sherd/train/plan/measure_hardware.h>
#include <sherd/train/plan/step_time.h>

#include "train_gpt/run/forecast.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/launch_flags.h"

namespace sherd::tools {
namespace {

using Seconds = std::map<std::string, double, std::less<>>;

constexpr int kSteps = 4;

/// Models whose steps are measured: large enough that operations take longer than their start.
std::vector<train_gpt::TrainConfig> samples_of(const train_gpt::TrainConfig& run, DType precision) {
  std::vector<train_gpt::TrainConfig> all;
  for (const auto optimizer : {train_gpt::OptimizerWord::adamw, train_gpt::OptimizerWord::muon}) {
    train_gpt::TrainConfig c = run;
    c.dim = 256;
    c.heads = 4;
    c.layers = 2;
    c.seq = 256;
    c.batch = 4 * c.ranks;
    c.precision = precision;
    c.optimizer = optimizer;
    all.push_back(std::move(c));
  }
  return all;
}

/// Adds the times of rank 0's compute stream in kSteps steps.
void add_measured(const train_gpt::TrainConfig& c, Seconds& seconds) {
  launch(static_cast<int>(c.ranks), train_gpt::launch_options(c), [&](RankContext& rank) {
    const auto trace = std::make_shared<Trace>();
    if (rank.world->rank() == 0) rank.device->set_trace(trace);
    train_gpt::Trainer trainer(rank, c, train_gpt::windows_of_zeros(c));
    for (int i = 0; i < 2; ++i) trainer.train_step();
    trace->set_enabled(true);
    for (int i = 0; i < kSteps; ++i) trainer.train_step();
    trace->set_enabled(false);
    if (rank.world->rank() != 0) return;
    for (const TraceRecord& r : trace->records())
      if (r.stream == "compute") seconds[r.what] += (r.end - r.begin) / 1e6;
  });
}

void add_planned(const train_gpt::TrainConfig& c, const HardwareProfile& hardware, Seconds& seconds) {
  const train_gpt::Forecast f = train_gpt::forecast(c, 0);
  for (const DryEntry& e : f.rank.record.entries)
    if (e.kind == DryEntry::Kind::operation && e.stream == 0)
      seconds[e.what.name] += kSteps * seconds_of(e.work, hardware);
}

OperationFactors measure_factors(const train_gpt::TrainConfig& run, DType precision,
                                 const HardwareProfile& hardware) {
  Seconds measured, planned;
  for (const train_gpt::TrainConfig& c : samples_of(run, precision)) {
    add_measured(c, measured);
    add_planned(c, hardware, planned);
  }
  OperationFactors factors;
  for (const auto& [what, seconds] : measured)
    if (const auto at = planned.find(what); at != planned.end() && at->second > 0 && seconds > 0)
      factors[what] = seconds / at->second;
  return factors;
}

}  // namespace

HardwareProfile measure_machine(const train_gpt::TrainConfig& config) {
  HardwareProfile profile;
  launch(static_cast<int>(config.ranks), train_gpt::launch_options(config), [&](RankContext& rank) {
    HardwareProfile measured = measure_hardware(rank);
    if (rank.world->rank() == 0) profile = std::move(measured);
  });
  profile.factors_16 = measure_factors(config, DType::bf16, profile);
  profile.factors_32 = measure_factors(config, DType::f32, profile);
  return profile;
}

}  // namespace sherd::tools
