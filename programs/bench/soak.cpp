#include <fmt/format.h>
#include <memory>

#include <cmath>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>
#include <sherd/optim/clip.h>
#include <sherd/optim/optimizer.h>
#include <sherd/train/report/process_memory.h>

#include "commands.h"
#include "train_gpt/model/model_source.h"

namespace sherd_bench {
namespace {

using namespace sherd;

struct Soak {
  int ranks = 4, steps = 3000, settled = 200;
  int64_t dim = 32, layers = 2, seq = 48, max_queued = 1024;
  /// Tolerances in percent: growth after `settled` steps; memory without an account.
  double growth = 5, unexplained = 10;
};

/// Figures that are judged, as rank 0 has them.
struct SoakFigures {
  int64_t settled = 0, end = 0;  // resident bytes
  MemoryGrowth growth;
  int64_t peak_work = 0, waits = 0;
  double loss = 0;
};

uint32_t word(uint64_t seed, uint64_t index) {
  return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
}

Tensor tokens(Device& device, uint64_t seed, int64_t batch, int64_t seq) {
  std::vector<int32_t> values(static_cast<size_t>(batch * seq));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(word(seed, i) % 97);
  const Tensor t = Tensor::empty(device, {batch, seq}, DType::i32, "activations");
  ops::copy_from_host(device.compute(), t, values.data(), t.nbytes());
  return t;
}

void train(RankContext& rank, const Soak& soak, int64_t experts, const ProcessMemory& start,
           SoakFigures& figures) {
  const DeviceMesh mesh(rank.world, {{"shard", soak.ranks}});
  const int parts = experts > 0 && soak.ranks % 2 == 0 ? 2 : 1;
  const DeviceMesh expert_mesh(rank.world, {{"expert_shard", soak.ranks / parts}, {"expert", parts}});
  train_gpt::TrainConfig config;
  config.dim = soak.dim;
  config.layers = soak.layers;
  config.seq = soak.seq;
  config.experts = experts;
  const auto built =
      build_model(config, {}, experts > 0 ? nn::ExpertParallel::of(expert_mesh) : nn::ExpertParallel{});
  nn::CausalModel& model = *built;
  const Routing routing = route(model, {.optimizer = Algorithm::adamw});
  for (size_t i = 0; i < model.blocks(); ++i) {
    if (ModuleBase* of_block = model.experts(i)) {
      FullyShardOptions options;
      options.shard_dim = "expert_shard";
      options.gradient_ranks = soak.ranks;
      fully_shard(*of_block, expert_mesh, options);
    }
    fully_shard(model.block(i), mesh);
  }
  fully_shard(model, mesh);
  Optimizer optimizer(model, routing, {});
  Stream& s = rank.device->compute();
  const Tensor sum = Tensor::empty(*rank.device, {1}, DType::f64, "metrics");
  nn::Tape tape;
  for (int step = 1; step <= soak.steps; ++step) {
    // The same on all ranks: batches of 1 to 6 sequences, of a quarter to the whole length.
    const auto n = static_cast<uint64_t>(step);
    const int64_t batch = 1 + word(1, n) % 6;
    const int64_t seq = soak.seq / 4 + word(2, n) % static_cast<uint32_t>(soak.seq - soak.seq / 4 + 1);
    const uint64_t seed = n * 64 + static_cast<uint64_t>(rank.world->rank());
    const Tensor inputs = tokens(*rank.device, seed, batch, seq);
    const nn::CrossEntropy objective =
        model(tape.input(inputs), inputs, 1.0f / static_cast<float>(batch * seq));
    ops::fill(s, sum, 0);
    ops::accumulate_sum(s, sum, objective.losses);
    tape.backward(objective.objective);
    clip_grad_norm(model, 1.0);
    optimizer.step(1e-3);
    const bool first = rank.world->rank() == 0;
    if (step != soak.settled && step % 500 != 0) continue;
    // Compared where nothing is under way on any rank, as at the end.
    rank.world->barrier(s);
    s.synchronize();
    const int64_t resident = ProcessMemory::now().resident;
    if (first && step == soak.settled) figures.settled = resident;
    if (first)
      fmt::print("  step {:>5}: {:.1f} MiB resident\n", step, static_cast<double>(resident) / (1 << 20));
  }
  double loss = 0;
  ops::copy_to_host(s, &loss, sum);
  const MemoryGrowth growth = memory_growth(start, *rank.world);
  if (rank.world->rank() != 0) return;
  figures.end = growth.resident;
  figures.growth = growth;
  figures.peak_work = rank.device->run_ahead().peak_work();
  figures.waits = rank.device->run_ahead().waits();
  figures.loss = loss;
}

bool judge(const Soak& soak, const SoakFigures& f) {
  const double grown = 100.0 * (static_cast<double>(f.end) / static_cast<double>(f.settled) - 1);
  const double unexplained = 100.0 * std::abs(static_cast<double>(f.growth.grown() - f.growth.explained())) /
                             static_cast<double>(f.growth.grown());
  fmt::print("  {}", format_growth(f.growth));
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  fmt::print("  resident after {} steps {:.1f} MiB, after {} {:.1f} MiB: {:+.1f} % (at most {})\n",
             soak.settled, mib(f.settled), soak.steps, mib(f.end), grown, soak.growth);
  fmt::print("  without an account {:.1f} % (at most {}); queued at most {} of {}, waited {} times\n",
             unexplained, soak.unexplained, f.peak_work, soak.max_queued, f.waits);
  return grown <= soak.growth && unexplained <= soak.unexplained && f.peak_work <= soak.max_queued;
}

/// Trains a small GPT twice, dense and with experts, each batch of another size, and waits for the device
/// only every 500 steps and where the experts do. Prints resident memory every so often, and the figures that
/// are judged: growth after `settled` steps, how much of what the process has taken since its start is
/// accounted for, how far the host was ahead. @returns whether these keep to what is tolerated, and the host
/// to `max_queued`.
bool run_soak(const Soak& soak) {
  bool good = true;
  const ProcessMemory start = ProcessMemory::now();
  for (const int64_t experts : {0, 4}) {
    fmt::print("{} steps of {} ranks, {}\n", soak.steps, soak.ranks, experts ? "4 experts" : "dense");
    LaunchOptions options;
    options.device.threads = 1;
    options.device.max_queued_work = soak.max_queued;
    SoakFigures figures;
    launch(soak.ranks, options, [&](RankContext& rank) { train(rank, soak, experts, start, figures); });
    const bool held = judge(soak, figures);
    fmt::print("  {}\n", held ? "good" : "NOT good");
    good = good && held;
  }
  return good;
}

}  // namespace

Command soak_command(CLI::App& program) {
  const auto b = std::make_shared<Soak>();
  CLI::App* app = program.add_subcommand(
      "soak", "memory and queues over many steps of varying shapes; exit code 1 if they grow");
  app->add_option("--ranks", b->ranks, "threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--steps", b->steps, "of each run")->check(CLI::Range(2, 1000000))->capture_default_str();
  app->add_option("--settled", b->settled, "steps after which memory may not grow")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->add_option("--dim", b->dim, "width of the model, a multiple of 4")
      ->check(CLI::Range(8, 8192))
      ->capture_default_str();
  app->add_option("--max-queued", b->max_queued, "operations the host may be ahead on a stream")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->add_option("--growth", b->growth, "most percent of growth after --settled steps")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  app->add_option("--unexplained", b->unexplained, "most percent of memory without an account")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  return {app, [b] { return run_soak(*b); }};
}

}  // namespace sherd_bench
