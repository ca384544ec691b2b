#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <sherd/checkpoint/saver.h>
#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>
#include <sherd/train/data/data.h>

#include "commands.h"
#include "measure.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/run_options.h"

namespace sherd_bench {
namespace {

using namespace sherd;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

struct CheckpointBench {
  std::string folder = ".";
  int ranks = 4;
  double gib = 1;
  int rounds = 3;
  bool async = false;  // of the saves beside dd
  int steps = 60, save_every = 10, step_ranks = 2;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A folder of its own below another, removed with everything in it.
class Scratch {
 public:
  explicit Scratch(const std::string& below) {
    std::string name = (fs::path(below) / "sherd_bench.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw IoError(fmt::format("cannot make a folder in '{}': {}; name one that can be written to", below,
                                std::strerror(errno)));
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

double dd_seconds(const fs::path& file, int64_t mib) {
  fs::remove(file);
  const std::string command =
      fmt::format("dd if=/dev/zero of='{}' bs=8M count={} conv=fsync 2>/dev/null", file.string(), mib / 8);
  const auto start = Clock::now();
  if (std::system(command.c_str()) != 0) throw IoError("dd failed: is there room in --folder?");
  return seconds_since(start);
}

// Tensors of 4096 columns, each rank's rows its own.
std::vector<LocalTensor> tensors(RankContext& rank, int64_t bytes) {
  const int64_t columns = 4096, count = 16, p = rank.world->size(), r = rank.world->rank();
  const int64_t rows = std::max<int64_t>(1, bytes / (count * columns * 4 * p));
  std::vector<LocalTensor> all;
  for (int64_t i = 0; i < count; ++i) {
    const Tensor data = Tensor::empty(*rank.device, {rows, columns}, DType::f32, "bench");
    ops::random_normal(rank.device->compute(), data.flat(), r * rows * columns, 1, fmt::format("t{}", i), 0,
                       1);
    all.push_back({.name = fmt::format("t{}", i),
                   .section = i % 3 == 0 ? Section::model : Section::optim,
                   .dtype = DType::f32,
                   .shape = {rows * p, columns},
                   .boxes = {{{r * rows, 0}, {rows, columns}}},
                   .data = data.flat()});
  }
  return all;
}

void bytes_per_second(const CheckpointBench& b, const fs::path& folder) {
  std::vector<double> dd, save, ratio;
  int64_t bytes = 0, staging = 0;
  launch(b.ranks, [&](RankContext& rank) {
    const auto wanted = static_cast<int64_t>(b.gib * (1 << 30));
    CheckpointSaver saver(rank.world, tensors(rank, wanted), {.folder = folder / "saved", .async = b.async});
    const bool first = rank.world->rank() == 0;
    if (first) staging = saver.staging_bytes() * b.ranks;
    for (int round = 0; round < b.rounds; ++round) {
      // Each twice in turn, the faster one counts: what came before leaves caches and the disk in different
      // states.
      double dd_best = 0, save_best = 0;
      for (int turn = 0; turn < 2; ++turn) {
        if (first) {
          const double seconds = dd_seconds(folder / "dd", wanted >> 20);
          fs::remove(folder / "dd");
          dd_best = turn == 0 ? seconds : std::min(dd_best, seconds);
        }
        rank.world->barrier(rank.device->compute());
        rank.device->compute().synchronize();
        saver.save({.step = round});
        saver.wait();
        const SaveReport report = saver.take_reports().front();
        if (!first) continue;
        bytes = report.bytes;
        save_best = turn == 0 ? report.seconds : std::min(save_best, report.seconds);
        fs::remove_all(report.committed);
      }
      if (!first) continue;
      dd.push_back(dd_best);
      save.push_back(save_best);
      ratio.push_back(static_cast<double>(bytes) / save_best / (static_cast<double>(wanted) / dd_best));
    }
  });
  const double mib = static_cast<double>(bytes) / (1 << 20);
  fmt::print("{:.0f} MiB from {} ranks, median of {} best-of-two\n", mib, b.ranks, b.rounds);
  fmt::print("{:<32}{:>12}{:>12}\n", "", "seconds", "MiB/s");
  fmt::print("{:<32}{:>12.2f}{:>12.0f}\n", "dd bs=8M conv=fsync", median(dd), b.gib * 1024 / median(dd));
  fmt::print("{:<32}{:>12.2f}{:>12.0f}\n", "save, snapshot to commit", median(save), mib / median(save));
  fmt::print("save / dd in the same round: {:.2f}; host copies held: {:.2f} of the checkpoint\n\n",
             median(ratio), static_cast<double>(staging) / static_cast<double>(bytes));
}

struct Kind {
  const char* name;
  bool save, async;
  std::vector<double> step_ms;  // with what saving made training wait
};

train_gpt::TrainConfig config_of(const CheckpointBench& b, const Kind& kind, const fs::path& folder) {
  train_gpt::TrainConfig c;
  c.ranks = b.step_ranks;
  c.dim = 256;
  c.batch = 16;
  c.optimizer = train_gpt::OptimizerWord::muon;
  c.steps = b.steps;
  c.quiet = true;
  if (kind.save) c.save = (folder / kind.name).string();
  c.save_every = kind.save ? b.save_every : 0;
  c.keep = kind.save ? 1 : 0;
  c.async_save = kind.async;
  return c;
}

// The mean step of each kind in windows of save_every steps, the kinds in turn.
void whole_steps(const CheckpointBench& b, const fs::path& folder) {
  std::vector<Kind> kinds{{"no checkpoints", false, false, {}},
                          {"saved behind training", true, true, {}},
                          {"saved while training waits", true, false, {}}};
  std::vector<train_gpt::TrainConfig> configs;
  for (const Kind& k : kinds) configs.push_back(config_of(b, k, folder));
  const auto data = sherd::ByteData::load(configs[0].data);
  const auto windows = std::make_shared<const sherd::TokenWindows>(data, configs[0].seq);
  int64_t bytes = 0;
  launch(b.step_ranks, [&](RankContext& rank) {
    std::vector<std::unique_ptr<train_gpt::Trainer>> trainers;
    std::vector<std::unique_ptr<sherd::Saving>> savings;
    for (auto& c : configs) {
      trainers.push_back(std::make_unique<train_gpt::Trainer>(rank, c, windows));
      savings.push_back(
          std::make_unique<sherd::Saving>(trainers.back()->saved_run(), train_gpt::saving_options(c)));
    }
    const bool first = rank.world->rank() == 0;
    // Each window then begins with the step that saves: what is written behind is written beside its own
    // kind.
    for (auto& t : trainers)
      for (int i = 1; i < b.save_every; ++i) t->train_step();
    for (int step = b.save_every; step + b.save_every < b.steps; step += b.save_every) {
      for (size_t k = 0; k < kinds.size(); ++k) {
        double ms = 0;
        for (int i = 0; i < b.save_every; ++i) {
          const sherd::StepResult r = trainers[k]->train_step();
          savings[k]->told(r.step);
          ms += r.step_ms + savings[k]->after_step(r.step).value_or(0);
        }
        if (first) kinds[k].step_ms.push_back(ms / b.save_every);
      }
    }
    for (auto& p : rank.device->allocator().table())
      if (first && (p.kind == MemoryClass::master || p.kind == MemoryClass::optimizer))
        bytes += p.peak_bytes * b.step_ranks / static_cast<int64_t>(kinds.size());
  });
  fmt::print("{} ranks, a checkpoint of {:.0f} MiB every {} steps, median of {} times {} steps\n",
             b.step_ranks, static_cast<double>(bytes) / (1 << 20), b.save_every, kinds[0].step_ms.size(),
             b.save_every);
  fmt::print("{:<32}{:>12}{:>16}\n", "", "ms a step", "times first's");
  for (const Kind& k : kinds) {
    std::vector<double> ratios;
    for (size_t i = 0; i < k.step_ms.size(); ++i) ratios.push_back(k.step_ms[i] / kinds[0].step_ms[i]);
    fmt::print("{:<32}{:>12.1f}{:>16.3f}\n", k.name, median(k.step_ms), median(ratios));
  }
}

/// Prints tables of medians and ratios. Writes below `folder` (a folder of its own, removed at the end).
void run_checkpoint(const CheckpointBench& bench) {
  const Scratch scratch(bench.folder);
  if (bench.rounds > 0) bytes_per_second(bench, scratch.path());
  if (bench.steps > 0) whole_steps(bench, scratch.path());
}

}  // namespace

Command checkpoint_command(CLI::App& program) {
  const auto b = std::make_shared<CheckpointBench>();
  CLI::App* app =
      program.add_subcommand("checkpoint", "saving beside dd; a step with saves beside one without");
  app->add_option("--folder", b->folder, "where to write (on the disk in question)")->capture_default_str();
  app->add_option("--gib", b->gib, "size of the checkpoint")
      ->check(CLI::Range(0.03, 1024.0))
      ->capture_default_str();
  app->add_option("--ranks", b->ranks, "ranks that write")->check(CLI::Range(1, 64))->capture_default_str();
  app->add_flag("--async", b->async, "save those from a copy in memory");
  app->add_option("--rounds", b->rounds, "of dd and saving in turn; 0 skips them")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app->add_option("--steps", b->steps, "training steps of each kind; 0 skips them")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app->add_option("--save-every", b->save_every, "steps between checkpoints")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return {app, [b] { return run_checkpoint(*b), true; }};
}

}  // namespace sherd_bench
