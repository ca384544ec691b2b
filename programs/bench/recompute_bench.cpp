#include <fmt/format.h>
#include <memory>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>
#include <sherd/optim/optimizer.h>

#include "commands.h"
#include "measure.h"
#include "model.h"

namespace sherd_bench {
namespace {

using namespace sherd;
using Clock = std::chrono::steady_clock;

struct RecomputeBench {
  int ranks = 2, rounds = 7;
  int64_t dim = 512, layers = 8, heads = 8, seq = 512;
};

struct Figures {
  std::vector<float> losses;
  std::vector<double> forward, step;  // seconds
  int64_t peak = 0, gathers = 0, reductions = 0;
};

// One of the two kinds, with its own model, on one rank.
class Training {
 public:
  Training(RankContext& rank, const RecomputeBench& b, bool recompute)
      : rank_(rank), bench_(b), model_({.dim = b.dim, .layers = b.layers, .heads = b.heads, .seq = b.seq}) {
    model_.set_recompute(recompute);
    const DeviceMesh mesh(rank.world, {{"shard", b.ranks}});
    const Routing routing = route(model_, {.optimizer = Algorithm::adamw});
    for (size_t i = 0; i < model_.blocks(); ++i) fully_shard(model_.block(i), mesh);
    fully_shard(model_, mesh);
    optimizer_.emplace(model_, routing, OptimizerOptions{});
    std::vector<int32_t> values(static_cast<size_t>(b.seq));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<int32_t>((i * 37 + static_cast<size_t>(rank.world->rank()) * 11) % 251);
    tokens_ = Tensor::empty(*rank.device, {1, b.seq}, DType::i32, MemoryClass::message, "tokens");
    ops::copy_from_host(rank.device->compute(), tokens_, values.data(), tokens_.nbytes());
  }

  void step(Figures& f) {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    Stream& s = rank_.device->compute();
    rank_.world->barrier(s);
    s.synchronize();
    const CommCounts before = rank_.world->counts();
    const auto begin = Clock::now();
    const nn::CrossEntropy loss =
        model_(tape_.input(tokens_), tokens_, 1.0f / static_cast<float>(bench_.seq));
    s.synchronize();
    f.forward.push_back(seconds(Clock::now() - begin));
    tape_.backward(loss.objective);
    optimizer_->step(1e-3);
    s.synchronize();
    f.step.push_back(seconds(Clock::now() - begin));
    f.losses.push_back(ops::to_floats(s, loss.objective.value())[0]);
    CommCounts after = rank_.world->counts();
    f.gathers =
        after["all_gather"].calls - (before.contains("all_gather") ? before.at("all_gather").calls : 0);
    f.reductions = after["reduce_scatter"].calls -
                   (before.contains("reduce_scatter") ? before.at("reduce_scatter").calls : 0);
  }

 private:
  RankContext& rank_;
  RecomputeBench bench_;
  train_gpt::Gpt model_;
  std::optional<Optimizer> optimizer_;
  Tensor tokens_;
  nn::Tape tape_;
};

// Elements for each token of a sequence, in units of the model's width. A block leaves for backward: the first norm's
// result 1, q, k and v 3, the attention's result 1, the residual stream in the middle 1, the second norm's result 1, the
// hidden layer before and behind its activation 8, and the block's result 1. Beside them, each norm's factor and each
// head's log-sum-exp. The peak comes in the backward of the last block's MLP: its result's gradient 1, the hidden
// layer's 4, its input's 1.
double expected_peak(const RecomputeBench& b, bool recompute) {
  const auto d = static_cast<double>(b.dim), layers = static_cast<double>(b.layers);
  const double block = 15 * d + 2 + static_cast<double>(b.heads);
  const double inputs = layers * d;  // of each block
  const double kept = recompute ? block : layers * block;
  return 4 * static_cast<double>(b.seq) * (inputs + kept + 6 * d);
}

/// Trains train_gpt's model with and without, under zero3 and AdamW, and prints losses, collectives, peaks and times.
/// @return whether the bits and the collectives are the same and the peaks are within 5 % of what is expected.
bool run_recompute(const RecomputeBench& bench) {
  Figures kept, again;
  // Peaks are a process' largest, so that each kind has devices of its own for them.
  for (Figures* f : {&kept, &again})
    launch(bench.ranks, [&](RankContext& rank) {
      Figures mine;
      Training training(rank, bench, f == &again);
      for (int i = 0; i < 2; ++i) training.step(mine);
      if (rank.world->rank() == 0) f->peak = rank.device->allocator().peak_bytes(MemoryClass::activation);
    });
  launch(bench.ranks, [&](RankContext& rank) {
    Figures a, b;
    Training without(rank, bench, false), with(rank, bench, true);
    for (int i = 0; i < bench.rounds + 1; ++i) {
      without.step(a);
      with.step(b);
      if (i > 0) continue;  // the first is a warm-up
      for (Figures* f : {&a, &b}) {
        f->forward.clear();
        f->step.clear();
      }
    }
    if (rank.world->rank() != 0) return;
    a.peak = kept.peak;
    b.peak = again.peak;
    kept = std::move(a);
    again = std::move(b);
  });

  fmt::print("d {}, {} blocks, T {}, {} ranks, zero3, AdamW; medians of {} steps in turn\n\n", bench.dim,
             bench.layers, bench.seq, bench.ranks, bench.rounds);
  fmt::print("{:<28} {:>14} {:>14}\n", "", "kept", "recomputed");
  fmt::print("{:<28} {:>14.6f} {:>14.6f}\n", "last loss", kept.losses.back(), again.losses.back());
  fmt::print("{:<28} {:>14} {:>14}\n", "all-gathers a step", kept.gathers, again.gathers);
  fmt::print("{:<28} {:>14} {:>14}\n", "reduce-scatters a step", kept.reductions, again.reductions);
  const auto mib = [](double bytes) { return bytes / (1 << 20); };
  bool good =
      kept.losses == again.losses && kept.gathers == again.gathers && kept.reductions == again.reductions;
  fmt::print("{:<28} {:>14.2f} {:>14.2f}\n", "peak activations, MiB", mib(static_cast<double>(kept.peak)),
             mib(static_cast<double>(again.peak)));
  fmt::print("{:<28} {:>14.2f} {:>14.2f}\n", "  expected", mib(expected_peak(bench, false)),
             mib(expected_peak(bench, true)));
  for (const auto& [f, recompute] : {std::pair(&kept, false), std::pair(&again, true)})
    good = good && std::abs(static_cast<double>(f->peak) / expected_peak(bench, recompute) - 1) <= 0.05;
  const double step = median(kept.step), forward = median(kept.forward);
  fmt::print("{:<28} {:>14.1f} {:>14.1f}\n", "forward, ms", forward * 1e3, median(again.forward) * 1e3);
  fmt::print("{:<28} {:>14.1f} {:>14.1f}\n", "step, ms", step * 1e3, median(again.step) * 1e3);
  fmt::print(
      "\nstep recomputed / kept {:.3f}; 1 + forward's share of the step {:.3f}; the one by the other "
      "{:.3f}\n",
      median(again.step) / step, 1 + forward / step, median(again.step) / (step + forward));
  fmt::print("bits of the losses {}, collectives {}, peaks {}\n",
             kept.losses == again.losses ? "equal" : "DIFFER",
             kept.gathers == again.gathers && kept.reductions == again.reductions ? "equal" : "DIFFER",
             good ? "as expected" : "NOT as expected");
  return good;
}

}  // namespace

Command recompute_command(CLI::App& program) {
  const auto b = std::make_shared<RecomputeBench>();
  CLI::App* app = program.add_subcommand(
      "recompute", "a step whose blocks' activations are computed again, beside one that keeps them");
  app->add_option("--ranks", b->ranks, "threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--dim", b->dim, "width of the model, a multiple of --heads")
      ->check(CLI::Range(8, 8192))
      ->capture_default_str();
  app->add_option("--layers", b->layers, "its blocks")->check(CLI::Range(1, 256))->capture_default_str();
  app->add_option("--heads", b->heads, "of its attention")->check(CLI::Range(1, 1024))->capture_default_str();
  app->add_option("--seq", b->seq, "tokens of a rank's one sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--rounds", b->rounds, "steps of each kind in turn; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return {app, [b] { return run_recompute(*b); }};
}

}  // namespace sherd_bench
