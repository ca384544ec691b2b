// Gradients by torch::autograd::grad(): of inputs and parameters, and gradients of gradients, beside plain libtorch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <sherd/torch/gradients.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/recompute.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using ::testing::HasSubstr;
using torch::autograd::grad;

// Every layer is a unit, and its results have second derivatives.
struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t in, int64_t out) : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};
SHERD_TORCH_MODULE(Layer);

struct FieldImpl : torch::nn::Module {
  FieldImpl() {
    for (const int64_t in : {2, 6, 6}) layers->push_back(Layer(in, 6));
    register_module("layers", layers);
    last = register_module("last", torch::nn::Linear(torch::nn::LinearOptions(6, 1).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = x;
    for (const auto& layer : *layers) h = layer->as<Layer>()->forward(h);
    return last(h);
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear last = nullptr;
};
SHERD_TORCH_MODULE(Field);

void wrap_layers(Field& model, const sherd::DeviceMesh& mesh, const FullyShardOptions& options) {
  for (const auto& layer : *model->layers) sherd::torch::wrap(*layer, mesh, options);
}

torch::Tensor points(int rank, int seed) { return random({5, 2}, 10 * rank + seed); }

// Loss of WGAN-GP (Gulrajani et al. 2017, arXiv:1704.00028), with three calls of the critic.
torch::Tensor critic_loss(Field& critic, int rank) {
  const torch::Tensor real = points(rank, 1), fake = points(rank, 2);
  const torch::Tensor between = (0.3 * real + 0.7 * fake).requires_grad_();
  const torch::Tensor score = critic(fake).mean() - critic(real).mean();
  const torch::Tensor out = critic(between);
  const torch::Tensor slope = grad({out}, {between}, {torch::ones_like(out)}, true, true)[0];
  return score + 10 * (slope.norm(2, {1}) - 1).pow(2).mean();
}

// The residual of u_xx + u_yy = u in a network's own derivatives.
torch::Tensor residual_loss(Field& field, int rank) {
  const torch::Tensor x = points(rank, 3).requires_grad_();
  const torch::Tensor u = field(x);
  const torch::Tensor first = grad({u}, {x}, {torch::ones_like(u)}, true, true)[0];
  torch::Tensor sum = -u.squeeze(1);
  for (int64_t d = 0; d < 2; ++d)
    sum = sum + grad({first.select(1, d).sum()}, {x}, {}, true, true)[0].select(1, d);
  return sum.pow(2).mean() + u.pow(2).mean();
}

// A result of a unit that is used inside of the unit (by the derivative of tanh) and outside has its gradient summed in another
// order: three terms differ by two roundings (6e-8 each) of the largest. Four layers of width 6 pass that on and add it up;
// 64 roundings bound it.
void expect_near(const Values& have, const Values& want, int ranks) {
  for (const auto& [name, value] : want) {
    const float largest = std::max(1.0f, value.abs().max().item<float>());
    EXPECT_LE((have.at(name).reshape(value.sizes()) - value).abs().max().item<float>(), 64 * 6e-8f * largest)
        << name << ", " << ranks << " ranks";
  }
}

template <class Net>
struct Derivatives {  // on 1, 3 and 4 ranks, under all strategies and HSDP, which have the same bits
  std::function<torch::Tensor(Net&, int rank)> loss;
  std::function<void(Net&, const sherd::DeviceMesh&, const FullyShardOptions&)> wrap;

  void run() const {
    torch::manual_seed(7);
    const Net first;
    for (const int ranks : {1, 3, 4}) {
      at::set_num_threads(1);
      std::vector<Values> each;
      for (int r = 0; r < ranks; ++r) {
        Net plain;
        copy_weights(*first, *plain);
        loss(plain, r).backward();
        each.push_back(gradients(*plain));
      }
      const Values want = mean(each);
      Values have;  // of the first strategy, under which every rank has all
      for (const bool hybrid : {false, true}) {
        if (hybrid && ranks != 4) continue;
        for (const Strategy strategy : strategies()) {
          launch(ranks, [&](RankContext& rank) {
            const sherd::DeviceMesh mesh =
                hybrid ? sherd::DeviceMesh(rank.world, {{"replicate", 2}, {"shard", 2}}) : mesh_of(rank);
            Net model;
            copy_weights(*first, *model);
            FullyShardOptions options;
            options.strategy = strategy;
            wrap(model, mesh, options);
            sherd::torch::fully_shard(*model, mesh, options);
            loss(model, rank.world->rank()).backward();
            if (!hybrid && strategy == Strategy::no_shard) {
              if (rank.world->rank() == 0) have = whole_gradients(*model);
            } else {
              expect_gradients(*model, have, where(rank, strategy) + (hybrid ? ", HSDP" : ""));
            }
          });
          if (::testing::Test::HasFailure()) return;
        }
      }
      expect_near(have, want, ranks);
    }
  }

 private:
  static Values whole_gradients(torch::nn::Module& model) {
    Values all;
    for (const auto& piece : sherd::torch::gradient_pieces(model)) all[piece.name] = piece.values;
    return all;
  }
};

TEST(TorchGradients, GradientPenaltyIsThatOfPlainLibtorch) {
  Derivatives<Field>{critic_loss, wrap_layers}.run();
}

TEST(TorchGradients, SecondDerivativesOfInputsAreThoseOfPlainLibtorch) {
  Derivatives<Field>{residual_loss, wrap_layers}.run();
}

TEST(TorchGradients, OfAModelThatIsOneUnitHaveTheBitsOfPlainLibtorch) {
  Comparison<Field>{critic_loss, [](Field&, const sherd::DeviceMesh&, const FullyShardOptions&) {}}.run();
}

// Results of grad() are the rank's own: of inputs, of intermediate results, and of unsharded parameters.
TEST(TorchGradients, OfInputsAndParametersHaveTheBitsOfPlainLibtorchAndLeaveTheStepAlone) {
  torch::manual_seed(7);
  const Field first;
  const int ranks = 3;
  for (const Strategy strategy : strategies())
    launch(ranks, [&](RankContext& rank) {
      const int r = rank.world->rank();
      Field plain, model;
      copy_weights(*first, *plain);
      copy_weights(*first, *model);
      FullyShardOptions options;
      options.strategy = strategy;
      wrap_layers(model, mesh_of(rank), options);
      sherd::torch::fully_shard(*model, mesh_of(rank), options);
      const auto gradients_of = [&](Field& net) {
        const torch::Tensor x = points(r, 1).requires_grad_();
        const torch::Tensor y = net(x).pow(2).sum();
        std::vector<torch::Tensor> of = net->parameters();
        of.insert(of.begin(), x);
        std::vector<torch::Tensor> all = grad({y}, of, {}, /*retain_graph=*/true);
        all.push_back(grad({y}, {x}, {}, true)[0]);
        y.backward();
        all.push_back(x.grad());
        return all;
      };
      const std::vector<torch::Tensor> want = gradients_of(plain), have = gradients_of(model);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(torch::equal(want[i], have[i])) << i << ", " << where(rank, strategy);
      std::vector<Values> each;
      for (int k = 0; k < ranks; ++k) {
        Field other;
        copy_weights(*first, *other);
        other(points(k, 1)).pow(2).sum().backward();
        each.push_back(gradients(*other));
      }
      expect_gradients(*model, mean(each), where(rank, strategy));
    });
}

// Gradients of parameters that have a graph: the norm of the gradient is a term of the loss.
torch::Tensor loss_with_norm(Field& net, int rank) {
  const torch::Tensor loss = net(points(rank, 1)).pow(2).sum();
  torch::Tensor norm = torch::zeros({});
  for (const torch::Tensor& g : grad({loss}, net->parameters(), {}, true, true)) norm = norm + g.pow(2).sum();
  return loss + norm;
}

TEST(TorchGradients, OfGradientsOfParametersAreThoseOfPlainLibtorch) {
  Derivatives<Field>{loss_with_norm, wrap_layers}.run();
}

// A force field: the forward itself takes a gradient.
struct ForcesImpl : torch::nn::Module {
  ForcesImpl() { register_module("energy", energy); }
  torch::Tensor forward(const torch::Tensor& at) {
    const torch::Tensor x = at.detach().requires_grad_();
    const torch::Tensor e = energy(x);
    return grad({e.sum()}, {x}, {}, true, true)[0] * scale + e;
  }
  Field energy;
  torch::Tensor scale = register_parameter("scale", torch::full({2}, 0.5));
};
SHERD_TORCH_MODULE(Forces);

TEST(TorchGradients, InsideOfAForwardAreThoseOfPlainLibtorch) {
  Derivatives<Forces>{[](Forces& net, int rank) { return net(points(rank, 1)).pow(2).sum(); },
                      [](Forces& net, const sherd::DeviceMesh& mesh, const FullyShardOptions& options) {
                        sherd::torch::wrap(*net->energy, mesh, options);
                      }}
      .run();
}

TEST(TorchGradients, TrainingStepsWithThemContinue) {
  torch::manual_seed(7);
  const Field first;
  Field plain;
  copy_weights(*first, *plain);
  torch::optim::SGD optimizer(plain->parameters(), torch::optim::SGDOptions(1e-2));
  at::set_num_threads(1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    critic_loss(plain, step).backward();
    optimizer.step();
  }
  Values after;
  for (auto& p : plain->named_parameters()) after[p.key()] = p.value().detach();
  launch(1, [&](RankContext& rank) {
    Field model;
    copy_weights(*first, *model);
    sherd::torch::fully_shard(*model, mesh_of(rank));  // one unit: the bits of plain libtorch
    sherd::torch::LocalShards shards(*model);
    torch::optim::SGD own(shards.parameters(), torch::optim::SGDOptions(1e-2));
    torch::Tensor loss;  // the graph of a step exists until the next one has its own
    for (int step = 0; step < 3; ++step) {
      loss = critic_loss(model, step);
      loss.backward();
      shards.step([&] { own.step(); });
    }
    expect_weights(*model, after, "three steps");
  });
}

TEST(TorchGradients, WhatCannotBeIsRefusedWithItsCause) {
  torch::manual_seed(7);
  const Field first;
  launch(2, [&](RankContext& rank) {
    Field model;
    copy_weights(*first, *model);
    wrap_layers(model, mesh_of(rank), {});
    sherd::torch::fully_shard(*model, mesh_of(rank));
    const torch::Tensor x = points(0, 1).requires_grad_();
    EXPECT_THAT(message_of([&] { model(x).sum().backward({}, true, true); }),
                HasSubstr("which have no graph; take gradients by torch::autograd::grad()"));
    sherd::torch::reset_step(*model);
    const torch::Tensor y = sherd::torch::recompute([&](const at::Tensor& t) { return model(t); }, x);
    EXPECT_THAT(message_of([&] { grad({y.sum()}, {x}); }), HasSubstr("through sherd::torch::recompute()"));
    sherd::torch::reset_step(*model);
    const torch::Tensor old = model(x).sum();
    sherd::torch::reset_step(*model);
    EXPECT_THAT(message_of([&] { grad({old}, {x}); }), HasSubstr("run the forward again"));
  });
}

}  // namespace
}  // namespace torch_test
