// Programs written independently of sherd: autocast, models that are fed what they gave, views as results.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <sherd/torch/meta_device.h>
#include <sherd/torch/recompute.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using torch::Tensor;

class AutocastOn {
 public:
  AutocastOn() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastOn() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

// The root's own weights and an inner unit, with an argument that needs a gradient.
struct MapImpl : torch::nn::Module {
  MapImpl() : in(register_module("in", torch::nn::Linear(4, 4))) { register_module("block", block); }
  Tensor forward(const Tensor& x) { return block(torch::tanh(in(x))); }
  torch::nn::Linear in;
  Block block{4};
};
SHERD_TORCH_MODULE(Map);

void wrap_map(Map& m, const sherd::DeviceMesh& mesh, const FullyShardOptions& options) {
  sherd::torch::wrap(*m->block, mesh, options);
}

TEST(TorchPractice, AModelFedWithWhatItGave) {
  Comparison<Map>{[](Map& m, int r) { return m(m(random({3, 4}, r))).square().mean(); }, wrap_map}.run();
}

TEST(TorchPractice, SeveralForwardsOfArgumentsThatNeedGradients) {
  Comparison<Map>{
      [](Map& m, int r) {
        Tensor x = random({3, 4}, r).requires_grad_(), y = random({3, 4}, r + 10).requires_grad_();
        return (m(x) * m(y)).mean();
      },
      wrap_map}
      .run();
}

// Losses of three steps under autocast, plain or sharded.
std::vector<float> losses(Map& m, bool recomputed, const std::function<void()>& step) {
  std::vector<float> found;
  for (int i = 0; i < 3; ++i) {
    Tensor loss;
    {
      const AutocastOn bf16;
      const Tensor x = random({3, 4}, i);
      const auto run = [&](const Tensor& in) { return m(in); };
      loss = (recomputed ? sherd::torch::recompute(run, x) : m(x)).to(torch::kFloat).square().mean();
    }
    found.push_back(loss.item<float>());
    loss.backward();
    step();
  }
  return found;
}

TEST(TorchPractice, RecomputationUnderAutocastSeesTheWeightsOfItsStep) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  const Map first;
  std::vector<float> found[2];
  for (const bool recomputed : {false, true}) {
    Map plain;
    copy_weights(*first, *plain);
    torch::optim::SGD sgd(plain->parameters(), torch::optim::SGDOptions(0.5));
    found[recomputed ? 1 : 0] = losses(plain, recomputed, [&] {
      sgd.step();
      sgd.zero_grad();
    });
  }
  EXPECT_EQ(found[0], found[1]);
}

// Plain libtorch keeps one cast of a weight for both, and sums its gradients in bf16: equal to the rounding of that.
TEST(TorchPractice, MicrobatchesInOneScopeOfAutocast) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  const Map first;
  const auto pass = [](Map& m) {
    const AutocastOn bf16;
    const Tensor one = m(random({3, 4}, 1)).to(torch::kFloat).square().mean();
    const Tensor two = m(random({3, 4}, 2)).to(torch::kFloat).square().mean();
    (one + two).backward();
  };
  Map plain;
  copy_weights(*first, *plain);
  pass(plain);
  const Values want = gradients(*plain);
  launch(1, [&](RankContext& rank) {
    Map model;
    copy_weights(*first, *model);
    wrap_map(model, mesh_of(rank), {});
    sherd::torch::fully_shard(*model, mesh_of(rank));
    pass(model);
    sherd::ModuleBase& root = sherd::torch::root_of(*model);
    for (auto& [name, p] : root.named_parameters()) {
      const auto have = sherd::ops::to_floats(sherd::runtime_of(root).device().compute(), p.grad_shard());
      const Tensor mine = torch::tensor(have), all = want.at(name).reshape({-1});
      EXPECT_LE((mine - all).norm().item<float>(), 0x1p-7f * all.norm().item<float>()) << name;
    }
  });
}

// Activations are what autocast has made of them, bit for bit, in every unit.
TEST(TorchPractice, AutocastsActivationsStayAsTheyAre) {
  Comparison<Map>{[](Map& m, int r) {
                    const AutocastOn bf16;
                    return m(random({3, 4}, r)).to(torch::kFloat).square().mean();
                  },
                  wrap_map}
      .run();
}

// A program that chooses dtypes itself, where nothing asks for a compute dtype.
struct SquareImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return (x * x).to(torch::kFloat) * weight; }
  Tensor weight = register_parameter("weight", torch::ones({4}));
};
SHERD_TORCH_MODULE(Square);

TEST(TorchPractice, ArgumentsKeepTheirDtypeWhereNoComputeDtypeWasAskedFor) {
  Comparison<Square>{[](Square& m, int r) {
                       return m(random({3, 4}, r).to(torch::kBFloat16)).mean();
                     },
                     [](Square&, const auto&, const auto&) {}}
      .run();
}

// Two results of which one is a view of the other.
struct SplitImpl : torch::nn::Module {
  SplitImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor y = linear(x);
    return {y, y.view({-1})};
  }
  torch::nn::Linear linear;
};
SHERD_TORCH_MODULE(Split);

TEST(TorchPractice, ResultsThatShareMemoryAreNotWrittenInPlace) {
  launch(1, [](RankContext& rank) {
    Split model;
    sherd::torch::fully_shard(*model, mesh_of(rank));
    auto [whole, view] = model(random({3, 4}, 0));
    EXPECT_NE(message_of([&, w = whole] { w.mul_(3); }), "");
    sherd::torch::reset_step(*model);
  });
}

TEST(TorchPractice, DataParallelIsSoInEveryUnit) {
  const Map first;
  launch(2, [&](RankContext& rank) {
    Map model;
    copy_weights(*first, *model);
    sherd::torch::wrap(*model->block, mesh_of(rank));
    sherd::torch::data_parallel(*model, mesh_of(rank));
    for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters())
      EXPECT_EQ(p.shard_range().size(), p.numel()) << name;
  });
}

// An integer buffer that nothing writes.
struct IdsImpl : torch::nn::Module {
  IdsImpl()
      : weight(register_parameter("weight", torch::empty({4}))),
        ids(register_buffer("ids", torch::empty({4}, torch::kLong))) {}
  Tensor weight, ids;
};

TEST(TorchPractice, UnwrittenIntegersAreNamed) {
  launch(1, [](RankContext& rank) {
    std::optional<sherd::torch::MetaDevice> meta(std::in_place);
    IdsImpl model;
    meta.reset();
    const auto shard = [&](const sherd::torch::ParameterInit& init) {
      return message_of([&] { sherd::torch::fully_shard(model, mesh_of(rank), {}, {}, init); });
    };
    EXPECT_THAT(
        shard([](torch::nn::Module& m) { m.parameters()[0].zero_(); }),
        ::testing::HasSubstr("to NaN: ids; what gives a module its first values has to write all of them"));
  });
}

TEST(TorchPractice, HoldersAreNotClonedToPlainModules) {
  const torch::nn::Sequential layers((sherd::torch::Holder<torch::nn::LinearImpl>(4, 4)));
  EXPECT_THAT(message_of([&] { layers->clone(); }), ::testing::HasSubstr("make a second one"));
}

// forward() may be noexcept.
struct SureImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) const noexcept { return x * weight; }
  Tensor weight = register_parameter("weight", torch::ones({4}));
};
SHERD_TORCH_MODULE(Sure);

TEST(TorchPractice, ForwardsThatDoNotThrow) {
  Comparison<Sure>{[](Sure& m, int r) {
                     return m(random({3, 4}, r)).square().mean();
                   },
                   [](Sure&, const auto&, const auto&) {}}
      .run();
}

TEST(TorchPractice, BuffersOfARootThatIsGoneSaySo) {
  launch(1, [](RankContext& rank) {
    torch::nn::BatchNorm1d norm(4);
    {
      auto model = std::make_shared<sherd::torch::Sharded<torch::nn::SequentialImpl>>();
      model->push_back(norm);
      sherd::torch::fully_shard(*model, mesh_of(rank));
    }
    EXPECT_THAT(message_of([&] { norm->running_mean.sum().item<float>(); }),
                ::testing::HasSubstr("root is gone"));
  });
}

}  // namespace
}  // namespace torch_test
