// Optimizers, clipping, checkpoints and weights of models of libtorch modules; what libtorch itself runs
// with.
#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/fsdp/read_loss.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>

#include "temporary_folder.h"
#include "torch/net.h"

namespace torch_test {
namespace {

namespace fs = std::filesystem;

struct BnNetImpl : torch::nn::Module {
  BnNetImpl() : norm(register_module("norm", torch::nn::BatchNorm1d(4))) {
    register_module("fc", fc);
    mask = register_buffer("mask", torch::ones({2}, torch::kBool));
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc(norm(x)); }
  torch::nn::BatchNorm1d norm;
  sherd::torch::Holder<torch::nn::LinearImpl> fc{4, 3};
  torch::Tensor mask;
};
SHERD_TORCH_MODULE(BnNet);

const std::vector<sherd::Algorithm>& algorithms() {
  static const std::vector<sherd::Algorithm> all{sherd::Algorithm::adamw, sherd::Algorithm::muon,
                                                 sherd::NorMuon::kName, sherd::Soap::kName};
  return all;
}

/// A rank's model with sherd's optimizer.
struct Trainer {
  Trainer(const RankContext& rank, const Net& first, Strategy strategy, sherd::Algorithm algorithm,
          std::optional<uint64_t> other_values = {}, double fraction = 1) {
    copy_weights(*first, *model);
    if (other_values)
      for (auto& p : model->parameters()) p.data().fill_(0.5f);
    sherd::torch::route(*model, {.optimizer = algorithm});
    FullyShardOptions o;
    o.strategy = strategy;
    sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), o);
    sherd::OptimizerOptions options{.muon = {.fraction = fraction}, .weight_decay = 0.1};
    if (algorithm == sherd::NorMuon::kName) options.further.push_back(sherd::NorMuon::factory());
    if (algorithm == sherd::Soap::kName) options.further.push_back(sherd::Soap::factory());
    optimizer.emplace(*model, options);
  }
  float step(int number) {
    net_loss(model, number).backward();
    const float norm = sherd::torch::read_stats(*model, sherd::torch::clip_grad_norm(*model, 0.5)).norm;
    optimizer->step(1e-2);
    return norm;
  }
  sherd::StateDict state() {
    return sherd::state_dict(sherd::torch::root_of(*model), &*optimizer, sherd::DictKind::on_all);
  }
  Net model;
  std::optional<sherd::torch::Optimizer> optimizer;
};

void expect_same(const sherd::StateDict& a, const sherd::StateDict& b) {
  EXPECT_EQ(a.steps, b.steps);
  for (const auto part : {&sherd::StateDict::model, &sherd::StateDict::optimizer}) {
    ASSERT_EQ((a.*part).size(), (b.*part).size());
    for (const auto& [name, value] : a.*part) EXPECT_TRUE(value.data == (b.*part).at(name).data) << name;
  }
}

TEST(TorchTraining, SherdsOptimizersGiveTheSameBitsUnderAllStrategies) {
  torch::manual_seed(7);
  Net first;
  for (const sherd::Algorithm& algorithm : algorithms()) {
    launch(4, [&](RankContext& rank) {
      std::optional<sherd::StateDict> want;
      std::vector<float> norms;
      for (const Strategy strategy : strategies()) {
        Trainer trainer(rank, first, strategy, algorithm);
        std::vector<float> mine;
        for (int step = 0; step < 3; ++step) mine.push_back(trainer.step(4 * step + rank.world->rank()));
        if (!want) {
          want = trainer.state();
          norms = mine;
          EXPECT_GT(mine[0], 0.5f);
        } else {
          expect_same(*want, trainer.state());
          EXPECT_EQ(norms, mine);
        }
      }
    });
  }
}

// A second team would take processors from libtorch's.
TEST(TorchTraining, ComputeRunsOnTheRanksThreadWithItsTeam) {
  Net first;
  sherd::LaunchOptions options;
  options.device.threads = 2;
  launch(1, options, [&](RankContext& rank) {
    Trainer trainer(rank, first, Strategy::optim_grads_params, sherd::Algorithm::adamw);
    trainer.step(0);
    std::thread::id thread;
    int threads = 0;
    rank.device->compute().submit("look", [&](sherd::ExecutionContext& context) {
      thread = std::this_thread::get_id();
      threads = context.threads;
    });
    EXPECT_EQ(thread, std::this_thread::get_id());
    EXPECT_EQ(threads, 2);
    const auto other = rank.device->make_stream("other");
    other->submit("look", [&](sherd::ExecutionContext& context) { threads = context.threads; });
    other->synchronize();
    EXPECT_EQ(threads, 1);
  });
}

// Every rank has the same batch, and the mean of 2 or 4 equal gradients is exact.
TEST(TorchTraining, EqualGradientsGiveTheBitsOfOneRank) {
  torch::manual_seed(7);
  Net first;
  for (const double fraction : {1.0, 0.25}) {
    for (const sherd::Algorithm& algorithm : algorithms()) {
      if (fraction < 1 && algorithm != sherd::Algorithm::muon) continue;
      std::optional<sherd::StateDict> want;
      for (const int ranks : {1, 2, 4}) {
        for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
          launch(ranks, [&](RankContext& rank) {
            Trainer trainer(rank, first, strategy, algorithm, {}, fraction);
            for (int step = 0; step < 4; ++step) trainer.step(step);
            const sherd::StateDict state = trainer.state();
            if (want) expect_same(*want, state);
            if (rank.world->size() == 1) want = state;
          });
        }
      }
    }
  }
}

TEST(TorchTraining, SherdsAdamWIsTorchs) {
  torch::manual_seed(7);
  Net first;
  at::set_num_threads(1);
  Net plain;
  copy_weights(*first, *plain);
  // Weights and embeddings decay, biases and norms do not.
  std::vector<torch::Tensor> matrices, others;
  for (auto& p : plain->parameters()) (p.dim() >= 2 ? matrices : others).push_back(p);
  using Options = torch::optim::AdamWOptions;
  const auto options = [](double decay) {
    return std::make_unique<Options>(Options(1e-2).betas({0.9, 0.95}).weight_decay(decay));
  };
  torch::optim::AdamW optimizer({{matrices, options(0.1)}, {others, options(0)}}, Options(1e-2));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    net_loss(plain, step).backward();
    torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
    optimizer.step();
  }
  launch(1, [&](RankContext& rank) {
    Trainer trainer(rank, first, Strategy::optim_grads_params, sherd::Algorithm::adamw);
    for (int step = 0; step < 3; ++step) trainer.step(step);
    const sherd::StateDict state = trainer.state();
    for (auto& p : plain->named_parameters()) {
      const auto have = state.model.at(p.key()).values<float>();
      const torch::Tensor want = p.value().detach().reshape({-1});
      for (int64_t i = 0; i < want.numel(); ++i)
        ASSERT_NEAR(have[static_cast<size_t>(i)], want[i].item<float>(), 2e-6) << p.key();
    }
  });
}

TEST(TorchTraining, CheckpointsResumeWithOtherRanksAndStrategies) {
  TemporaryFolder folder;
  torch::manual_seed(7);
  Net first;
  for (const sherd::Algorithm& algorithm : algorithms()) {
    const fs::path save = folder.path() / name_of(algorithm);
    std::optional<sherd::StateDict> saved;
    launch(3, [&](RankContext& rank) {
      Trainer trainer(rank, first, Strategy::optim_grads_params, algorithm);
      for (int step = 0; step < 2; ++step) trainer.step(3 * step + rank.world->rank());
      sherd::CheckpointSaver saver(
          rank.world, sherd::checkpoint_tensors(sherd::torch::root_of(*trainer.model), &*trainer.optimizer),
          {.folder = save});
      sherd::TrainingState training;
      training.step = 2;
      saver.save(training);
      const sherd::StateDict state = trainer.state();
      if (rank.world->rank() == 0) saved = state;
      sherd::export_weights(sherd::torch::root_of(*trainer.model), save.string() + ".safetensors");
    });
    for (const Strategy strategy : strategies()) {
      launch(2, [&](RankContext& rank) {
        Trainer trainer(rank, first, strategy, algorithm, 1);
        const sherd::Resumed resumed =
            sherd::resume(save, sherd::torch::root_of(*trainer.model), &*trainer.optimizer);
        EXPECT_EQ(resumed.report.training.step, 2);
        expect_same(*saved, trainer.state());
        trainer.step(0);

        Trainer fresh(rank, first, strategy, algorithm, 1);
        sherd::import_weights(sherd::torch::root_of(*fresh.model), save.string() + ".safetensors");
        for (const auto& [name, value] : fresh.state().model)
          EXPECT_TRUE(value.data == saved->model.at(name).data) << name;
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(
            std::isfinite(net_loss(fresh.model, 0).item<float>()));  // the new weights are what is gathered
      });
    }
    for (auto& p : first->named_parameters())
      EXPECT_EQ(saved->model.at(p.key()).shape,
                sherd::Shape(p.value().sizes().begin(), p.value().sizes().end()));
  }
}

TEST(TorchTraining, BuffersAreSavedAndLoaded) {
  torch::manual_seed(7);
  BnNet first;
  launch(2, [&](RankContext& rank) {
    BnNet model;
    copy_weights(*first, *model);
    sherd::torch::fully_shard<torch::nn::LinearImpl>(*model, mesh_of(rank));
    model(random({5, 4}, 1)).sum().backward();
    sherd::ModuleBase& root = sherd::torch::root_of(*model);
    sherd::StateDict dict = sherd::state_dict(root, nullptr, sherd::DictKind::on_all);
    const auto mean = dict.model.at("norm.running_mean").values<float>();
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(mean[static_cast<size_t>(i)], model->norm->running_mean[i].item<float>());
    EXPECT_NE(mean[0], 0.0f);
    EXPECT_EQ(dict.model.at("norm.num_batches_tracked").values<int64_t>()[0], 1);
    EXPECT_EQ(dict.model.at("mask").values<uint8_t>()[1], 1);
    dict.model.at("norm.running_mean").values<float>()[2] = 42;
    sherd::reset_step(root);
    sherd::load_state_dict(root, nullptr, dict, sherd::DictKind::on_all, {.optimizer = false});
    rank.device->compute().synchronize();
    EXPECT_EQ(model->norm->running_mean[2].item<float>(), 42.0f);
  });
}

TEST(TorchTraining, DataParallel) {
  torch::manual_seed(7);
  Net first;
  launch(3, [&](RankContext& rank) {
    Net model;
    copy_weights(*first, *model);
    sherd::torch::data_parallel(*model, mesh_of(rank));
    EXPECT_EQ(sherd::runtime_of(sherd::torch::root_of(*model)).options().strategy, Strategy::no_shard);
    net_loss(model, rank.world->rank()).backward();
    for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters())
      EXPECT_EQ(p.grad_shard().numel(), p.numel()) << name;
  });
}

// One rank's gradient is not finite: all leave the step out, whosever optimizer it is.
TEST(TorchTraining, StepsThatAreNotFiniteAreSkipped) {
  torch::manual_seed(7);
  Net first;
  Values want;
  for (auto& p : first->named_parameters()) want[p.key()] = p.value().detach();
  launch(2, [&](RankContext& rank) {
    Net model;
    copy_weights(*first, *model);
    sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank));
    sherd::torch::LocalShards shards(*model);
    torch::optim::SGD optimizer(shards.parameters(), torch::optim::SGDOptions(0.1));
    for (const bool finite : {false, true}) {
      const float factor = finite || rank.world->rank() == 0 ? 1.0f : std::numeric_limits<float>::infinity();
      (net_loss(model, 0) * factor).backward();
      sherd::clip_grad_norm(sherd::torch::root_of(*model), 1);
      EXPECT_EQ(shards.step([&] { optimizer.step(); }), finite);
      if (!finite) expect_weights(*model, want, "skipped");
    }
    EXPECT_NE(message_of([&] { shards.step([] {}); }).find("final gradients"), std::string::npos);
  });
}

TEST(TorchTraining, LocalShardsSkipWhatIsNotFiniteWithoutClipping) {
  torch::manual_seed(7);
  Net first;
  Values want;
  for (auto& p : first->named_parameters()) want[p.key()] = p.value().detach();
  for (const Strategy strategy : strategies())
    launch(2, [&](RankContext& rank) {
      Net model = sharded(first, rank, strategy);
      sherd::torch::LocalShards shards(*model);
      const float factor = rank.world->rank() == 0 ? 1.0f : std::numeric_limits<float>::quiet_NaN();
      (net_loss(model, 0) * factor).backward();
      EXPECT_FALSE(shards.step([] { ADD_FAILURE() << "a step was taken"; })) << where(rank, strategy);
      EXPECT_EQ(shards.skipped(), 1);
      expect_weights(*model, want, where(rank, strategy));
      net_loss(model, 0).backward();
      EXPECT_TRUE(shards.step([] {}));
      sherd::torch::LocalShards trusting(*model, /*skip_non_finite=*/false);
      (net_loss(model, 0) * factor).backward();
      EXPECT_TRUE(trusting.step([] {}));
    });
}

// Ranks with three rows, one and none: each row counts alike.
TEST(TorchTraining, RanksWithoutDataTakePartInAMeanLoss) {
  torch::manual_seed(7);
  using Linear = sherd::torch::Holder<torch::nn::LinearImpl>;
  const Linear first(4, 3);
  const torch::Tensor rows = random({4, 4}, 5), labels = torch::tensor({0, 2, 1, 2});
  at::set_num_threads(1);
  Linear plain(4, 3);
  copy_weights(*first, *plain);
  torch::cross_entropy_loss(plain(rows), labels).backward();
  for (const Strategy strategy : strategies())
    launch(3, [&](RankContext& rank) {
      Linear model(4, 3);
      copy_weights(*first, *model);
      FullyShardOptions options;
      options.strategy = strategy;
      sherd::torch::fully_shard(*model, mesh_of(rank), options);
      sherd::ModuleBase& root = sherd::torch::root_of(*model);
      sherd::torch::LocalShards shards(*model);
      const int64_t begin[] = {0, 3, 4, 4};
      const auto mine = torch::indexing::Slice(begin[rank.world->rank()], begin[rank.world->rank() + 1]);
      const torch::Tensor x = rows.index({mine}), y = labels.index({mine});
      EXPECT_DOUBLE_EQ(sherd::mean_over_ranks(root, static_cast<double>(x.size(0))), 4.0 / 3);
      const torch::Tensor sum = torch::cross_entropy_loss(model(x), y, {}, at::Reduction::Sum);
      (sum / sherd::mean_over_ranks(root, static_cast<double>(x.size(0)))).backward();
      for (auto& [name, p] : root.named_parameters()) {
        const auto have = sherd::ops::to_floats(rank.device->compute(), p.grad_shard());
        const auto want = part_of(plain->named_parameters()[name].grad(), p.shard_range());
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_NEAR(have[i], want[i], 1e-6) << name << ", " << where(rank, strategy);
      }
      EXPECT_TRUE(shards.step([] {}));
    });
}

// A BLAS that a program finds before torch's makes it many times slower, without a warning.
TEST(TorchBuild, TorchHasItsOwnBlas) {
  for (const char* name : {"sgemm_", "dsyevd_"}) {
    void* function = dlsym(RTLD_DEFAULT, name);
    Dl_info where{};
    ASSERT_TRUE(function != nullptr && dladdr(function, &where) != 0) << name;
    EXPECT_NE(std::string(where.dli_fname).find("libtorch_cpu"), std::string::npos)
        << name << " is of " << where.dli_fname;
  }
}

}  // namespace
}  // namespace torch_test
