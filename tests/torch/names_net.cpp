// names_net FOLDER [WEIGHTS...]: trains a model with BatchNorm, a scalar parameter, a tied head and a module that is registered
// twice for two steps on 3 ranks, saves a checkpoint (FOLDER/run) and exports FOLDER/weights.safetensors. Each of WEIGHTS is
// then imported on 2 ranks and exported again as WEIGHTS.again. names_interop.py compares all with the same model in Python.
#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <string>

#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/launcher.h>
#include <sherd/torch/call.h>
#include <sherd/torch/fully_shard.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/optimizer.h>

namespace {

namespace nn = torch::nn;

struct HeadImpl : nn::Module {
  explicit HeadImpl(const torch::Tensor& table) : weight(register_parameter("weight", table)) {}
  torch::Tensor weight;
};

nn::Conv2d conv(int64_t from, int64_t to) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
}

struct NetImpl : nn::Module {
  NetImpl() {
    register_module("stem", stem);
    register_module("norm", norm);
    register_module("conv", inner);
    register_module("norm2", norm2);
    register_module("again", norm2);
    register_module("tok", tok);
    head = register_module("head", std::make_shared<HeadImpl>(tok->weight));
  }
  torch::Tensor forward(const torch::Tensor& image) {
    torch::Tensor x = torch::relu(norm(stem(image)));
    x = torch::relu(x + norm2(inner(x))) * scale;
    return torch::matmul(x.mean({2, 3}) + tok(torch::arange(image.size(0))), head->weight.t());
  }
  nn::Conv2d stem = conv(3, 6), inner = conv(6, 6);
  nn::BatchNorm2d norm = nn::BatchNorm2d(6), norm2 = nn::BatchNorm2d(6);
  nn::Embedding tok = nn::Embedding(7, 6);
  std::shared_ptr<HeadImpl> head;
  torch::Tensor scale = register_parameter("scale", torch::tensor(1.5));
};
SHERD_TORCH_MODULE(Net);

void on_ranks(int ranks, const std::function<void(Net&, sherd::RankContext&)>& body) {
  sherd::LaunchOptions options;
  options.device.threads = 1;
  sherd::launch(ranks, options, [&](sherd::RankContext& rank) {
    at::set_num_threads(1);
    const sherd::torch::ThreadGenerator random(11);
    Net model;
    sherd::torch::route(*model, {.optimizer = sherd::Algorithm::adamw});
    sherd::torch::fully_shard(*model, sherd::DeviceMesh(rank.world, {{"shard", ranks}}));
    body(model, rank);
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw std::invalid_argument("usage: names_net FOLDER [WEIGHTS...]");
    const std::string folder = argv[1];
    if (argc == 2)
      on_ranks(3, [&](Net& model, sherd::RankContext& rank) {
        sherd::ModuleBase& root = sherd::torch::root_of(*model);
        sherd::torch::Optimizer optimizer(*model);
        for (int step = 0; step < 2; ++step) {
          model(torch::randn({4, 3, 8, 8})).square().mean().backward();
          optimizer.step(1e-2);
        }
        sherd::CheckpointSaver saver(rank.world, sherd::checkpoint_tensors(root, &optimizer),
                                     {.folder = folder + "/run"});
        saver.save({.step = 2});
        sherd::export_weights(root, folder + "/weights.safetensors");
      });
    for (int i = 2; i < argc; ++i)
      on_ranks(2, [&](Net& model, sherd::RankContext&) {
        sherd::ModuleBase& root = sherd::torch::root_of(*model);
        sherd::import_weights(root, argv[i]);
        sherd::export_weights(root, argv[i] + std::string(".again"));
      });
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "names_net: " << e.what() << "\n";
    return 1;
  }
}
