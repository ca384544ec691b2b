#include "train_gpt/run/forecast.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/save_plan.h>
#include <sherd/train/guards/repeat_step.h>
#include <sherd/train/plan/measure_hardware.h>

#include "train_gpt/run/trainer.h"

namespace train_gpt {
namespace {

/// Steps before the one that is counted: the first finds the order of units, by which the next ones gather ahead.
constexpr int kStepsBefore = 1;

/// Tokens that are all 0.
class Zeros final : public sherd::FileBytes {
 public:
  explicit Zeros(int64_t size) : size_(size) {}
  const std::filesystem::path& path() const override { return path_; }
  int64_t size() const override { return size_; }
  void read(int64_t, void* to, int64_t bytes) const override {
    std::memset(to, 0, static_cast<size_t>(bytes));
  }

 private:
  const std::filesystem::path path_ = "zeros";
  const int64_t size_;
};

/// Without what a forecast neither reads nor writes.
TrainConfig without_files(TrainConfig c) {
  for (std::string* const path : {&c.resume, &c.init_weights, &c.save}) path->clear();
  c.from_scratch = true;
  c.tokens.clear();
  c.sft.clear();
  c.packing = false;
  return c;
}

/// The copy that --async-save keeps for the whole run, as CheckpointSaver allocates it; undefined without.
sherd::Tensor checkpoint_copy(const TrainConfig& run, Trainer& trainer, int rank, sherd::Device& device) {
  if (!run.async_save || run.save.empty()) return {};
  const sherd::SavedRun saved = trainer.saved_run();
  const auto tensors = sherd::checkpoint_tensors(saved.model, saved.optimizer);
  const auto files = sherd::plan_files(rank, tensors);
  return sherd::Tensor::host(device, {sherd::copied_bytes(files, tensors)}, sherd::DType::u8,
                             sherd::MemoryClass::scratch, "checkpoint copy");
}

/// The copy of --verify-step, which is there in one step; undefined without.
sherd::Tensor repeat_copy(const TrainConfig& run, Trainer& trainer, sherd::Device& device) {
  if (run.verify_step == 0) return {};
  const sherd::SavedRun saved = trainer.saved_run();
  return sherd::Tensor::host(device, {sherd::repeat_bytes(saved.model, *saved.optimizer)}, sherd::DType::u8,
                             sherd::MemoryClass::scratch, "repeated step");
}

Forecast dry_run(const TrainConfig& run, int rank, const ForecastOptions& options) {
  const TrainConfig config = without_files(run);
  sherd::DryRank dry(rank, static_cast<int>(config.ranks), options.device);
  Trainer trainer(dry.context(), config, windows_of_zeros(config), options.build);
  const sherd::Tensor copies[] = {checkpoint_copy(run, trainer, rank, *dry.context().device),
                                  repeat_copy(run, trainer, *dry.context().device)};
  for (int i = 0; i < kStepsBefore; ++i) (void)trainer.issue_step();
  const int64_t before = dry.context().device->allocator().peak_bytes();
  dry.begin_step();
  const PendingStep step = trainer.issue_step();
  Forecast f{.rank = dry.forecast(options.ranks_per_host),
             .comm = step.result.comm,
             .run_peak_bytes = std::max(before, dry.context().device->allocator().peak_bytes()),
             .blocks = dry.context().device->allocator().blocks(),
             .copies = dry.context().device->copies().blocks(),
             .parameters = trainer.parameters(),
             .work = trainer.work()};
  if (const auto plans = trainer.muon_plans(); !plans.empty())
    for (const sherd::PlanRank& r : plans.front().ranks) f.newton_schulz_cost.push_back(r.cost);
  return f;
}

}  // namespace

std::shared_ptr<const sherd::TokenWindows> windows_of_zeros(const TrainConfig& c) {
  const int64_t count = c.seq + 1;
  const sherd::TokenFile file{
      .bytes = std::make_shared<Zeros>(count), .begin = 0, .count = count, .type = sherd::TokenType::u8};
  std::vector<sherd::SharedTokens> data;
  data.push_back({std::make_shared<const sherd::TokenStream>("zeros", std::vector{file})});
  return std::make_shared<const sherd::TokenWindows>(
      std::move(data), nullptr, sherd::TokenWindowsOptions{.seq = c.seq, .vocab = vocabulary(c)});
}

Forecast forecast(const TrainConfig& run, int rank, ForecastOptions options) {
  const int64_t within = std::exchange(options.device.keep_within, 0);
  Forecast f = dry_run(run, rank, options);
  const int64_t peak = f.rank.peak_bytes;
  if (within == 0 || peak > within || peak + f.rank.by_class.at("slack") <= within) return f;
  options.device.keep_within = within;
  return dry_run(run, rank, options);
}

std::vector<int> further_ranks(const Forecast& first, int64_t world, PlannedRanks which) {
  constexpr int64_t kAll = 8;
  std::set<int> ranks;
  const std::vector<double>& cost = first.newton_schulz_cost;
  // A team of fewer ranks than the world has does not say which of the world's they are.
  if (std::ssize(cost) == world) {
    ranks.insert(static_cast<int>(std::ranges::max_element(cost) - cost.begin()));
    if (which == PlannedRanks::several)
      ranks.insert(static_cast<int>(std::ranges::min_element(cost) - cost.begin()));
  }
  if (which == PlannedRanks::several)
    for (int64_t r = world <= kAll ? 1 : world - 1; r < world; ++r) ranks.insert(static_cast<int>(r));
  ranks.erase(0);
  return {ranks.begin(), ranks.end()};
}

sherd::DryDeviceOptions dry_options(sherd::Device& device) {
  const bool gpu = device.kind() == sherd::DeviceKind::cuda;
  return {.device = {.kernels = gpu ? sherd::KernelSet::reference : device.kernel_set(),
                     .threads = device.threads()},
          .total_memory = device.total_memory(),
          .communicator_bytes = device.allocator().live_bytes("NCCL"),
          .gpu = gpu};
}

int64_t usable_memory(const sherd::RankContext& rank) {
  const int64_t memory = sherd::memory_of(rank);
  return rank.device->kind() == sherd::DeviceKind::cuda ? memory / 20 * 19 : memory;
}

void reserve_memory(const TrainConfig& config, const sherd::RankContext& context) {
  sherd::Device& device = *context.device;
  if (device.kind() != sherd::DeviceKind::cuda) return;
  const int64_t limit = config.memory_limit > 0 ? config.memory_limit : usable_memory(context);
  device.allocator().keep_within(sherd::planned_limit(limit));
  if (context.world->size() == 1) return;
  if (config.comm != sherd::BackendKind::nccl && sherd::cuda_device_count() == 1) return;
  sherd::DryDeviceOptions dry = dry_options(device);
  dry.keep_within = sherd::planned_limit(limit);
  const Forecast f = forecast(config, context.world->rank(), {.device = dry});
  device.allocator().reserve(f.blocks);
  device.copies().reserve(f.copies);
}

}  // namespace train_gpt
