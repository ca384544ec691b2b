#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops.h>
#include <sherd/nn/nn.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/normuon.h>
#include <sherd/train/data/data.h>

#include "commands.h"
#include "measure.h"
#include "train_gpt/run/trainer.h"

namespace sherd_bench {
namespace {

using namespace sherd;
using Clock = std::chrono::steady_clock;

struct MuonBench {
  int ranks = 4, dim = 384, layers = 6, rounds = 5;
  int step_ranks = 2, tokens = 16384, step_rounds = 3;
  std::string device = "cpu";               // or "cuda", whose ranks share the GPUs there are
  std::string symmetric_products = "auto";  // as in DeviceOptions
};

LaunchOptions launch_options(const MuonBench& b) {
  return {.device = {.kind = parse_device_kind(b.device),
                     .symmetric_products = parse_symmetric_products(b.symmetric_products)}};
}

std::string words(const MuonBench& b) {
  const bool own = b.symmetric_products != MuonBench().symmetric_products;
  return b.device + (own ? " (symmetric products: " + b.symmetric_products + ")" : "");
}

// Milliseconds from when all ranks are here until the last is done.
template <class F>
double timed(RankContext& rank, F f) {
  Stream& s = rank.device->compute();
  rank.world->barrier(s);
  s.synchronize();
  const auto start = Clock::now();
  f();
  rank.world->barrier(s);
  s.synchronize();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// x itself, as a function of parameters whose gradients become random.
nn::Var with_random_gradients(const nn::Var& x, const std::vector<Parameter>& parameters) {
  return nn::function(
      {x}, [&](Stream&) { return x.value(); },
      [parameters](Stream& s, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
        for (const Parameter& p : parameters)
          ops::random_normal(s, p.grad().flat(0, p.numel()), 0, 1, p.name(), 0, 1);
        return {call.output()};
      },
      parameters);
}

/// A transformer's matrices without a transformer: gradients are random and stay.
struct Matrices : nn::Module<Matrices> {
  struct Layer : nn::Module<Layer> {
    explicit Layer(int64_t d) {
      qkv = param("qkv.weight", {3 * d, d}, normal(0.02f)).set_row_blocks({d, d, d});
      proj = param("proj.weight", {d, d}, normal(0.02f));
      fc = param("fc.weight", {4 * d, d}, normal(0.02f));
      out = param("out.weight", {d, 4 * d}, normal(0.02f));
      for (Parameter* p : {&qkv, &proj, &fc, &out}) p->set_cut(CutClass::row);
    }
    nn::Var forward(const nn::Var& x) { return with_random_gradients(x, own_parameters()); }
    Parameter qkv, proj, fc, out;
  };
  Matrices(int64_t d, int layers) {
    for (int i = 0; i < layers; ++i) {
      all.push_back(std::make_unique<Layer>(d));
      child("blocks." + std::to_string(i), *all.back());
    }
    gain = param("gain", {1}, constant(1));
  }
  nn::Var forward(const nn::Var& in) {
    nn::Var x = with_random_gradients(in, {gain});
    for (auto& l : all) x = (*l)(x);
    return x;
  }
  std::vector<std::unique_ptr<Layer>> all;
  Parameter gain;
};

struct PhaseKind {
  std::string name;
  std::function<std::unique_ptr<UpdateRule>(Device&, std::vector<UpdateItem>)> make;
};

PhaseKind muon_kind(const std::string& name, MatrixMode mode, IterationForm form, bool inexact = false,
                    double fraction = 1) {
  MuonOptions o;
  o.whole.mode = mode;
  o.orthogonalize.form = form;
  o.whole.allow_inexact = inexact;
  o.fraction = fraction;
  return {name, [o](Device& device, std::vector<UpdateItem> items) {
            return std::make_unique<Muon>(device, std::move(items), o);
          }};
}

void phases(const MuonBench& b) {
  constexpr auto kStandard = IterationForm::standard, kGram = IterationForm::gram;
  constexpr size_t kMuon = 4, kNorMuon = 8;
  const std::vector<PhaseKind> kinds = {
      muon_kind("gather / standard", MatrixMode::gather, kStandard),
      muon_kind("gather / gram", MatrixMode::gather, kGram),
      muon_kind("owner / standard", MatrixMode::owner, kStandard),
      muon_kind("owner / gram", MatrixMode::owner, kGram),
      muon_kind("auto / standard", MatrixMode::automatic, kStandard),
      muon_kind("auto / gram", MatrixMode::automatic, kGram),
      muon_kind("auto (inexact allowed) / gram", MatrixMode::automatic, kGram, true),
      muon_kind("auto / standard, 1/4 of rows", MatrixMode::automatic, kStandard, false, 0.25),
      {"NorMuon, auto / standard",
       [](Device& device, std::vector<UpdateItem> items) {
         return std::make_unique<NorMuon>(device, std::move(items), NorMuonOptions{});
       }},
      muon_kind("auto / by shape", MatrixMode::automatic, IterationForm::by_shape)};
  std::vector<std::vector<double>> times(kinds.size());
  launch(b.ranks, launch_options(b), [&](RankContext& rank) {
    Matrices model(b.dim, b.layers);
    const DeviceMesh mesh(rank.world, {{"shard", b.ranks}});
    for (auto& l : model.all) fully_shard(*l, mesh);
    fully_shard(model, mesh);
    std::vector<Muon::Item> items;
    for (auto& l : model.all)
      for (auto& p : l->own_parameters()) items.push_back({p, 0.1});
    std::vector<std::unique_ptr<UpdateRule>> rules;
    for (auto& k : kinds) rules.push_back(k.make(*rank.device, items));
    const Tensor x = Tensor::empty(*rank.device, {1}, DType::f32, "bench");
    nn::Tape tape;
    tape.backward(model(tape.input(x)));
    ShardRuntime& runtime = runtime_of(model);
    WeightsChange change(runtime);
    for (int round = -1; round < b.rounds; ++round) {  // the first warms up
      for (size_t k = 0; k < kinds.size(); ++k) {
        const double ms = timed(rank, [&] { rules[k]->step(rank.device->compute(), 1e-3, {}); });
        if (round >= 0 && rank.world->rank() == 0) times[k].push_back(ms);
      }
    }
    change.end();
  });
  fmt::print("optimizer phase, {}, {} ranks, matrices of {} layers of width {}, median of {}\n", words(b),
             b.ranks, b.layers, b.dim, b.rounds);
  fmt::print("{:<32}{:>12}{:>26}\n", "mode / form", "ms", "times faster than first");
  for (size_t k = 0; k < kinds.size(); ++k) {
    std::vector<double> ratios;
    for (size_t r = 0; r < times[k].size(); ++r) ratios.push_back(times[0][r] / times[k][r]);
    fmt::print("{:<32}{:>12.1f}{:>26.2f}\n", kinds[k].name, median(times[k]), median(ratios));
  }
  std::vector<double> cost;
  for (size_t r = 0; r < times[kMuon].size(); ++r) cost.push_back(times[kNorMuon][r] / times[kMuon][r]);
  fmt::print("NorMuon's phase / Muon's: {:.3f}\n", median(cost));
}

struct Steps {
  std::string name;
  train_gpt::TrainConfig config;
  std::vector<double> step_ms, optimizer_ms;
};

void whole_steps(const MuonBench& b) {
  if (b.step_rounds == 0) return;
  constexpr int64_t kSeq = 256;
  std::vector<Steps> kinds(3);
  kinds[0].name = "adamw";
  kinds[1].name = "muon, standard";
  kinds[2].name = "muon, gram";
  for (auto& k : kinds) {
    k.config.ranks = b.step_ranks;
    k.config.device = parse_device_kind(b.device);
    k.config.symmetric_products = parse_symmetric_products(b.symmetric_products);
    k.config.dim = b.dim;
    k.config.layers = b.layers;
    k.config.heads = std::max(1, b.dim / 64);
    k.config.seq = kSeq;
    k.config.batch = b.tokens / kSeq;
    k.config.steps = 1 + b.step_rounds;
  }
  kinds[1].config.optimizer = kinds[2].config.optimizer = train_gpt::OptimizerWord::muon;
  kinds[2].config.ns_form = IterationForm::gram;
  const auto data = sherd::ByteData::load(kinds[0].config.data);
  const auto windows = std::make_shared<const sherd::TokenWindows>(data, kSeq);
  launch(b.step_ranks, launch_options(b), [&](RankContext& rank) {
    std::vector<std::unique_ptr<train_gpt::Trainer>> trainers;
    for (auto& k : kinds) trainers.push_back(std::make_unique<train_gpt::Trainer>(rank, k.config, windows));
    for (int round = 0; round <= b.step_rounds; ++round) {
      for (size_t k = 0; k < kinds.size(); ++k) {
        const sherd::StepResult r = trainers[k]->train_step();
        if (round == 0 || rank.world->rank() != 0) continue;  // the first warms up
        kinds[k].step_ms.push_back(r.step_ms);
        kinds[k].optimizer_ms.push_back(r.optim_ms);
      }
    }
  });
  fmt::print("\nwhole step, {}, {} ranks, {} tokens, {} layers of width {}, median of {}\n", words(b),
             b.step_ranks, b.tokens, b.layers, b.dim, b.step_rounds);
  fmt::print("{:<32}{:>12}{:>14}{:>20}\n", "optimizer", "ms", "of it update", "times AdamW's step");
  for (auto& k : kinds) {
    std::vector<double> ratios;
    for (size_t r = 0; r < k.step_ms.size(); ++r) ratios.push_back(k.step_ms[r] / kinds[0].step_ms[r]);
    fmt::print("{:<32}{:>12.1f}{:>14.1f}{:>20.3f}\n", k.name, median(k.step_ms), median(k.optimizer_ms),
               median(ratios));
  }
}

/// Prints a table of medians and ratios.
void run_muon(const MuonBench& bench) {
  phases(bench);
  whole_steps(bench);
}

}  // namespace

Command muon_command(CLI::App& program) {
  const auto b = std::make_shared<MuonBench>();
  CLI::App* app =
      program.add_subcommand("muon", "Muon's plan entries and forms; a step of Muon beside one of AdamW");
  app->add_option("--ranks", b->ranks, "ranks of the optimizer phase")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--dim", b->dim, "width of the transformer")
      ->check(CLI::Range(8, 8192))
      ->capture_default_str();
  app->add_option("--layers", b->layers, "its blocks")->check(CLI::Range(1, 256))->capture_default_str();
  app->add_option("--rounds", b->rounds, "measurements of each kind; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--step-ranks", b->step_ranks, "ranks of the whole steps")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--tokens", b->tokens, "tokens of a whole step, a multiple of 256 x --step-ranks")
      ->check(CLI::Range(512, 1 << 24))
      ->capture_default_str();
  app->add_option("--step-rounds", b->step_rounds, "whole steps of each kind; 0 skips them")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app->add_option("--device", b->device, "what to measure; ranks share the GPUs there are")
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  add_symmetric_products(*app, b->symmetric_products, b->device);
  return {app, [b] { return run_muon(*b), true; }};
}

}  // namespace sherd_bench
