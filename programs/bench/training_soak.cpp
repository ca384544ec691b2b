#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/comm/launcher.h>
#include <sherd/train/report/process_memory.h>
#include <sherd/train/report/trace_output.h>

#include "commands.h"
#include "train_gpt/rules/parse_config.h"
#include "train_gpt/run/output.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/run/training_loop.h"
#include "train_gpt/run/windows.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/run_options.h"

namespace sherd_bench {
namespace {

namespace fs = std::filesystem;

struct TrainingSoak {
  train_gpt::TrainConfig config;
  std::string folder;
  int64_t limit_kib = 1024;
};

/// Memory of the process when `step` was the last one saved.
struct MemorySample {
  int64_t step = 0, resident = 0;
  int64_t heap = 0;  // in use: what malloc has given and not got back
};

/// Samples until it is stopped.
class MemorySampler {
 public:
  explicit MemorySampler(fs::path saved)
      : saved_(std::move(saved)), thread_([this](const std::stop_token& stop) { run(stop); }) {}
  std::vector<MemorySample> finish() {
    thread_.request_stop();
    thread_.join();
    return std::move(samples_);
  }

 private:
  static constexpr size_t kMost = 1 << 14;

  void run(const std::stop_token& stop) {
    samples_.resize(kMost);  // its own growth does not count
    samples_.clear();
    for (auto pause = std::chrono::milliseconds(10); !stop.stop_requested();) {
      std::this_thread::sleep_for(pause);
      if (samples_.size() == kMost) {
        for (size_t i = 0; i < kMost / 2; ++i) samples_[i] = samples_[2 * i];
        samples_.resize(kMost / 2);
        pause *= 2;
      }
      std::string latest;
      std::ifstream(saved_ / "latest") >> latest;
      const struct mallinfo2 heap = ::mallinfo2();
      samples_.push_back({sherd::step_of_checkpoint_name(latest), sherd::ProcessMemory::now().resident,
                          static_cast<int64_t>(heap.uordblks + heap.hblkhd)});
    }
  }

  fs::path saved_;
  std::vector<MemorySample> samples_;
  std::jthread thread_;  // last: it uses all of these
};

void train(const TrainingSoak& soak) {
  const train_gpt::TrainConfig& config = soak.config;
  const auto windows = train_gpt::open_windows(config);
  sherd::launch(static_cast<int>(config.ranks), train_gpt::launch_options(config),
                [&](sherd::RankContext& rank) {
                  sherd::TraceOutput trace(rank, train_gpt::trace_options(config));
                  train_gpt::Trainer trainer(rank, config, windows);
                  std::optional<train_gpt::Output> out;
                  if (rank.world->rank() == 0)
                    out.emplace(train_gpt::CommandLine{.config = config}, sherd::ProcessMemory::now());
                  std::string doing;
                  const train_gpt::TrainingEnd end =
                      train_gpt::train(trainer, config, {}, trace, out ? &*out : nullptr, doing);
                  if (!end.wrong.empty()) throw sherd::Error(end.wrong);
                });
}

/// Medians over the samples of the steps from `first` to `last`.
MemorySample median_of(const std::vector<MemorySample>& samples, int64_t first, int64_t last) {
  std::vector<int64_t> resident, heap;
  for (const MemorySample& s : samples) {
    if (s.step < first || s.step > last) continue;
    resident.push_back(s.resident);
    heap.push_back(s.heap);
  }
  if (resident.empty())
    throw sherd::InvalidArgument(
        fmt::format("steps {} to {} took less time than a sample; give more --steps", first, last));
  const auto middle = [](std::vector<int64_t>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  return {last, middle(resident), middle(heap)};
}

/// Prints both kinds of memory for each tenth of the steps. @returns whether neither has grown by more than the limit from
/// the second tenth to the last.
bool judge(const TrainingSoak& soak, const std::vector<MemorySample>& samples) {
  const int64_t steps = soak.config.steps;
  std::vector<MemorySample> tenths;
  for (int64_t i = 0; i < 10; ++i)
    tenths.push_back(median_of(samples, steps * i / 10 + 1, steps * (i + 1) / 10 - (i == 9)));
  for (const MemorySample& t : tenths)
    fmt::print("  to step {:>8}: resident {:>8} KiB, heap in use {:>8} KiB\n", t.step, t.resident >> 10,
               t.heap >> 10);
  const int64_t resident = (tenths.back().resident - tenths[1].resident) >> 10;
  const int64_t heap = (tenths.back().heap - tenths[1].heap) >> 10;
  fmt::print(
      "  growth from the second tenth to the last: resident {:+} KiB, heap in use {:+} KiB (at most {})\n",
      resident, heap, soak.limit_kib);
  return resident <= soak.limit_kib && heap <= soak.limit_kib;
}

/// Trains train_gpt's byte model as the program does, with all that a run writes: checkpoints, metrics, events, the loss curve.
/// @returns whether the process's memory is flat.
bool run_training_soak(TrainingSoak soak) {
  train_gpt::TrainConfig& c = soak.config;
  const fs::path folder = soak.folder;
  fs::create_directories(folder);
  c.data = (folder / "text").string();
  std::ofstream text(c.data);
  for (int i = 0; i < 4000; ++i) text << i << " is more than " << i - 1 << ". ";
  text.close();
  c.save = (folder / "saved").string();
  c.metrics = (folder / "metrics.jsonl").string();
  c.log_dir = (folder / "events").string();
  c.loss_svg = (folder / "loss.svg").string();
  c.overwrite = c.quiet = true;
  c.dim = c.seq = 8;
  c.layers = 1;
  c.heads = 2;
  c.batch = c.ranks;
  c.threads = 1;
  c.plan = false;
  fmt::print("{} steps of {} ranks, {} saves{}\n", c.steps, c.ranks,
             c.steps / std::max<int64_t>(1, c.save_every), c.async_save ? " behind training" : "");
  MemorySampler sampler(c.save);
  train(soak);
  const bool good = judge(soak, sampler.finish());
  fmt::print("  {}\n", good ? "good" : "NOT good");
  return good;
}

}  // namespace

Command training_soak_command(CLI::App& program) {
  const auto b = std::make_shared<TrainingSoak>();
  b->config.steps = 100'000;
  b->config.save_every = 10;
  b->config.keep = 3;
  CLI::App* app = program.add_subcommand("training-soak",
                                         "memory of a long run that saves often; exit code 1 if it grows");
  app->add_option("FOLDER", b->folder, "for the run's files, about 30 MB")->required();
  app->add_option("--ranks", b->config.ranks, "threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--steps", b->config.steps, "of the run")
      ->check(CLI::Range(10, 1'000'000'000))
      ->capture_default_str();
  app->add_option("--save-every", b->config.save_every, "steps from save to save")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app->add_option("--keep", b->config.keep, "checkpoints that stay; 0: all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app->add_option("--eval-every", b->config.eval_every, "steps from evaluation to evaluation; 0: none")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app->add_flag("--async-save", b->config.async_save, "save behind training");
  app->add_flag("--keep-best", b->config.keep_best, "save after the best evaluation, too");
  app->add_option("--limit", b->limit_kib, "most KiB of growth")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  return {app, [b] { return run_training_soak(*b); }};
}

}  // namespace sherd_bench
