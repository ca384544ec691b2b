#include "measure.h"

#include <map>
#include <string>
#include <utility>

#include <sherd/comm/launcher.h>
#include <sherd/train/plan/measure_hardware.h>
#include <sherd/train/plan/step_time.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/run/forecast.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/launch_flags.h"

namespace sherd::tools {
namespace {

constexpr int kSteps = 4;

/// An operation of a sample's steps, and its seconds.
struct Timed {
  Operation what;
  Work work;
  double seconds;
};

/// Models whose steps are measured: large enough that operations take longer than their start, with heads of 64 and 128, and on
/// GPUs with the widths of docs/gpu-results.md.
std::vector<train_gpt::TrainConfig> samples_of(const train_gpt::TrainConfig& run, DType precision) {
  const bool gpu = run.device == DeviceKind::cuda;
  std::vector<train_gpt::TrainConfig> all;
  for (const auto optimizer : {train_gpt::OptimizerWord::adamw, train_gpt::OptimizerWord::muon})
    for (const int64_t head : {64, 128}) {
      train_gpt::TrainConfig c = run;
      c.precision = precision;
      c.optimizer = optimizer;
      c.seq = gpu ? 1024 : 256;
      c.batch = (gpu ? 8 : 4) * c.ranks;
      c.dim = gpu ? 2048 : 256;
      c.heads = c.dim / head;
      c.layers = gpu ? 4 : 2;
      if (gpu && head == 64) {  // with a wide vocabulary
        c.model = "gpt2-124m";
        c.from_scratch = true;
        train_gpt::take_sizes(c, train_gpt::model_source(c), false);
      }
      all.push_back(train_gpt::with_model_files(std::move(c)));
    }
  return all;
}

/// Adds rank 0's operations of the compute stream in kSteps steps. An operation is the one of the plan with its name and place
/// among those of that name; names whose operations are not as many as planned are left out.
void add_measured(const train_gpt::TrainConfig& c, const HardwareProfile& hardware, std::vector<Timed>& all) {
  std::map<std::string, std::vector<const DryEntry*>, std::less<>> planned;
  const int64_t memory = c.device == DeviceKind::cuda ? hardware.memory_bytes : 0;
  const train_gpt::Forecast f = train_gpt::forecast(c, 0, {.device = {.total_memory = memory}});
  for (const DryEntry& e : f.rank.record.entries)
    if (e.kind == DryEntry::Kind::operation && e.stream == 0) planned[e.what.name].push_back(&e);
  std::map<std::string, std::vector<double>, std::less<>> measured;
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
      if (r.stream == "compute") measured[r.what].push_back((r.end - r.begin) / 1e6);
  });
  for (const auto& [name, seconds] : measured)
    if (const auto& entries = planned[name]; seconds.size() == kSteps * entries.size())
      for (size_t i = 0; i < seconds.size(); ++i) {
        const DryEntry& e = *entries[i % entries.size()];
        all.push_back({e.what, e.work, seconds[i]});
      }
}

/// Rates of kinds and times of operations beside them, in steps of the samples.
void measure_steps(const train_gpt::TrainConfig& run, DType precision, const HardwareProfile& hardware,
                   KindRates& rates, OperationFactors& factors) {
  constexpr double kWide = 1 << 30;  // Work::width 0
  std::vector<Timed> all;
  for (const train_gpt::TrainConfig& c : samples_of(run, precision)) add_measured(c, hardware, all);
  struct Sum {
    double measured = 0, of = 0;
  };
  std::map<std::pair<WorkKind, double>, Sum> kinds;
  for (const Timed& t : all) {
    const double amount = t.work.flops > 0 ? t.work.flops : static_cast<double>(t.work.bytes);
    const bool odd = t.what.kind == WorkKind::product && t.work.width < 8;  // measure_hardware() has it
    if (amount == 0 || odd || t.work.host_bytes > 0 || t.seconds < 4 * hardware.operation_s) continue;
    Sum& sum = kinds[{t.what.kind, t.work.width > 0 ? static_cast<double>(t.work.width) : kWide}];
    sum.measured += t.seconds;
    sum.of += amount;
  }
  for (const auto& [at, sum] : kinds) rates[at.first].push_back({at.second, sum.of / sum.measured});
  std::map<std::string, Sum, std::less<>> names;
  for (const Timed& t : all) {
    names[t.what.name].measured += t.seconds;
    names[t.what.name].of += seconds_of(t.work, t.what.kind, hardware, rates);
  }
  for (const auto& [name, sum] : names)
    if (sum.of > 0 && sum.measured > 0) factors[name] = sum.measured / sum.of;
}

}  // namespace

HardwareProfile measure_machine(const train_gpt::TrainConfig& config) {
  HardwareProfile profile;
  launch(static_cast<int>(config.ranks), train_gpt::launch_options(config), [&](RankContext& rank) {
    HardwareProfile measured = measure_hardware(rank);
    if (rank.world->rank() == 0) profile = std::move(measured);
  });
  measure_steps(config, DType::bf16, profile, profile.rates_16, profile.factors_16);
  measure_steps(config, DType::f32, profile, profile.rates_32, profile.factors_32);
  return profile;
}

}  // namespace sherd::tools
