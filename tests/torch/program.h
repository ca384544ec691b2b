// Training programs of libtorch modules: plain and sharded on the same data, with a checkpoint that resumes on other ranks.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>

#include "temporary_folder.h"
#include "torch/support.h"

namespace torch_test {

/// Networks, each a root with an optimizer of its own, and their losses.
class Program {
 public:
  Program() = default;
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual std::vector<torch::nn::Module*> networks() = 0;
  /// Notes the units below the networks.
  virtual void wrap(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) = 0;
  /// Returns the loss of a rank's batch: its backward has the gradients of network `which`. A step takes the
  /// networks in their order.
  virtual torch::Tensor loss(size_t which, int rank, int step) = 0;
  /// loss() is that of all ranks' batches.
  virtual bool whole_batch() const { return false; }

  int ranks = 1;
  at::ScalarType dtype = at::kFloat;

 protected:
  torch::Tensor data(torch::IntArrayRef sizes, int rank, int step, int kind = 0) const {
    return random(sizes, seed(rank, step, kind)).to(dtype);
  }
  static torch::Tensor words(int64_t count, torch::IntArrayRef sizes, int rank, int step, int kind = 0) {
    torch::Generator generator =
        at::detail::createCPUGenerator(static_cast<uint64_t>(seed(rank, step, kind)));
    return torch::randint(0, count, sizes, generator, torch::kLong);
  }

 private:
  static int seed(int rank, int step, int kind) { return 1000 * step + 10 * rank + kind; }
};

/// torch::optim's optimizers over LocalShards.
template <class Optimizer>
struct TorchUpdates {
  using Options = typename sherd::torch::OptimizerState<Optimizer>::Options;
  static void prepare(torch::nn::Module&) {}
  struct Plain {
    Plain(torch::nn::Module& network, const Options& options) : optimizer(network.parameters(), options) {}
    void step() { optimizer.step(); }
    Optimizer optimizer;
  };
  struct Sharded {
    Sharded(torch::nn::Module& network, const Options& options)
        : shards(network), optimizer(shards.parameters(), options), state(shards.keep_state(optimizer)) {}
    void step() {
      EXPECT_TRUE(shards.step([&] { optimizer.step(); }));
    }
    sherd::torch::LocalShards shards;
    Optimizer optimizer;
    sherd::Optimizer& state;
  };
};

/// Two steps, and two more after a checkpoint of two steps on four ranks: on 1, 3 and 4 ranks, under all strategies and
/// HSDP. `exact`: weights are those of plain libtorch in bits. Otherwise all layouts have the same bits, and the distance
/// from plain libtorch in f64 is at most four times that of its f32: both round the same sums in another order, and the
/// largest of hundreds of such errors varies by less than that.
template <class Sharded, class Updates, class Plain = Sharded>
class TrainingTest {
 public:
  TrainingTest(typename Updates::Options options, bool exact) : options_(std::move(options)), exact_(exact) {
    at::set_num_threads(1);
    torch::manual_seed(7);
    first_ = std::make_unique<Sharded>();
  }

  void run() const {
    TemporaryFolder folder;
    const Layout four{4, Strategy::optim_grads_params, false};
    launch(four.ranks, [&](RankContext& rank) {
      Trainer trainer(*this, rank, four);
      trainer.steps(0, rank);
      trainer.save(rank, folder.path());
    });
    for (const int ranks : {1, 3, 4}) {
      const std::vector<Expected> want = {expected(ranks, ranks, 0), expected(4, ranks, 2)};
      std::vector<State> bits;
      for (const bool hybrid : {false, true})
        for (const Strategy strategy : strategies()) {
          if (hybrid && ranks != 4) continue;
          const Layout layout{ranks, strategy, hybrid};
          const std::vector<State> have = trained(layout, folder.path());
          for (size_t i = 0; i < have.size(); ++i) {
            const std::string at = fmt::format("{} ranks, {}{}{}", ranks, sherd::name_of(strategy),
                                               hybrid ? ", HSDP" : "", i == 0 ? "" : ", resumed");
            if (exact_ || !bits.empty()) expect_bits(have[i], exact_ ? want[i].single : bits[i], at);
            if (!exact_ && bits.empty()) expect_near(have[i], want[i], at);
          }
          if (bits.empty()) bits = have;
          if (::testing::Test::HasFailure()) return;
        }
    }
  }

 private:
  /// The weights of each network.
  using State = std::vector<Values>;
  struct Layout {
    int ranks;
    Strategy strategy;
    bool hybrid;
  };
  struct Expected {
    State single, exact;
  };

  template <class P>
  void begin(P& program, int ranks) const {
    program.ranks = ranks;
    const auto from = first_->networks(), to = program.networks();
    for (size_t n = 0; n < to.size(); ++n) copy_weights(*from[n], *to[n]);
  }

  /// A rank's networks and optimizers.
  struct Trainer {
    Trainer(const TrainingTest& test, const RankContext& rank, const Layout& layout) {
      test.begin(program, layout.ranks);
      const sherd::DeviceMesh mesh =
          layout.hybrid ? sherd::DeviceMesh(rank.world, {{"replicate", 2}, {"shard", layout.ranks / 2}})
                        : mesh_of(rank);
      FullyShardOptions options;
      options.strategy = layout.strategy;
      for (torch::nn::Module* const network : program.networks()) Updates::prepare(*network);
      program.wrap(mesh, options);
      for (torch::nn::Module* const network : program.networks()) {
        sherd::torch::fully_shard(*network, mesh, options);
        updates.push_back(std::make_unique<typename Updates::Sharded>(*network, test.options_));
      }
    }
    void steps(int begin, const RankContext& rank) {
      for (int step = begin; step < begin + 2; ++step)
        for (size_t n = 0; n < updates.size(); ++n) {
          program.loss(n, rank.world->rank(), step).backward();
          updates[n]->step();
        }
    }
    sherd::ModuleBase& root(size_t n) { return sherd::torch::root_of(*program.networks()[n]); }
    void save(const RankContext& rank, const std::filesystem::path& folder) {
      for (size_t n = 0; n < updates.size(); ++n)
        sherd::CheckpointSaver(rank.world, sherd::checkpoint_tensors(root(n), &updates[n]->state),
                               {.folder = folder / std::to_string(n)})
            .save({.step = 2});
    }
    void resume(const std::filesystem::path& folder) {
      for (size_t n = 0; n < updates.size(); ++n)
        sherd::resume(folder / std::to_string(n), root(n), &updates[n]->state);
    }
    State state() {
      State all;
      for (size_t n = 0; n < updates.size(); ++n) {
        const sherd::StateDict dict = sherd::state_dict(root(n), nullptr, sherd::DictKind::on_all);
        all.emplace_back();
        for (auto& p : program.networks()[n]->named_parameters()) {
          const auto values = dict.model.at(p.key()).template values<float>();
          all.back()[p.key()] = torch::tensor(at::ArrayRef<float>(values.data(), values.size()));
        }
      }
      return all;
    }
    Sharded program;
    std::vector<std::unique_ptr<typename Updates::Sharded>> updates;
  };

  /// After two steps, and after two further ones from the checkpoint.
  std::vector<State> trained(const Layout& layout, const std::filesystem::path& folder) const {
    std::vector<State> all;
    launch(layout.ranks, [&](RankContext& rank) {
      Trainer trainer(*this, rank, layout);
      trainer.steps(0, rank);
      const State fresh = trainer.state();
      trainer.resume(folder);
      trainer.steps(2, rank);
      const State resumed = trainer.state();
      if (rank.world->rank() == 0) all = {fresh, resumed};
    });
    return all;
  }

  /// Plain libtorch with the mean of the ranks' gradients: two steps of `before` ranks, then `more` of `ranks`.
  Expected expected(int before, int ranks, int more) const {
    return {plain(before, ranks, more, at::kFloat),
            exact_ ? State() : plain(before, ranks, more, at::kDouble)};
  }
  State plain(int before, int ranks, int more, at::ScalarType dtype) const {
    at::set_num_threads(1);
    Plain program;
    begin(program, before);
    program.dtype = dtype;
    const auto networks = program.networks();
    std::vector<std::unique_ptr<typename Updates::Plain>> updates;
    for (torch::nn::Module* const network : networks) {
      network->to(dtype);
      updates.push_back(std::make_unique<typename Updates::Plain>(*network, options_));
    }
    for (int step = 0; step < 2 + more; ++step) {
      program.ranks = step < 2 ? before : ranks;
      for (size_t n = 0; n < networks.size(); ++n) {
        std::vector<Values> each;
        for (int r = 0; r < (program.whole_batch() ? 1 : program.ranks); ++r) {
          networks[n]->zero_grad();
          program.loss(n, r, step).backward();
          each.push_back(gradients(*networks[n]));
        }
        const Values all = mean(each);
        for (auto& p : networks[n]->named_parameters()) p.value().mutable_grad() = all.at(p.key());
        updates[n]->step();
      }
    }
    State weights;
    for (torch::nn::Module* const network : networks) {
      weights.emplace_back();
      for (auto& p : network->named_parameters()) weights.back()[p.key()] = p.value().detach().reshape({-1});
    }
    return weights;
  }

  static void expect_bits(const State& have, const State& want, const std::string& at) {
    for (size_t n = 0; n < want.size(); ++n)
      for (const auto& [name, value] : want[n])
        EXPECT_TRUE(torch::equal(have[n].at(name), value)) << name << " of network " << n << ", " << at;
  }
  static double distance(const State& a, const State& b) {
    double largest = 0;
    for (size_t n = 0; n < a.size(); ++n)
      for (const auto& [name, value] : a[n]) {
        const torch::Tensor difference = value.to(at::kDouble) - b[n].at(name).to(at::kDouble);
        largest = std::max(largest, difference.abs().max().item<double>());
      }
    return largest;
  }
  static void expect_near(const State& have, const Expected& want, const std::string& at) {
    const double rounding = distance(want.single, want.exact);
    EXPECT_GT(rounding, 0) << at;
    EXPECT_LE(distance(have, want.exact), 4 * rounding) << at;
  }

  typename Updates::Options options_;
  bool exact_;
  std::unique_ptr<Sharded> first_;
};

}  // namespace torch_test
