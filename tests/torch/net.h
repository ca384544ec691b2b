// Small language model of libtorch modules, written as without sherd, except for the holders.
#pragma once

#include "torch/support.h"

namespace torch_test {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
SHERD_TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  static constexpr int64_t kVocab = 17, kWidth = 10;
  NetImpl() : tokens(register_module("tokens", torch::nn::Embedding(kVocab, kWidth))) {
    for (int i = 0; i < 3; ++i) blocks->push_back(Block(kWidth));
    register_module("blocks", blocks);
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocab).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = tokens(x);
    for (const auto& block : *blocks) h = block->as<Block>()->forward(h);
    return head(h);
  }
  torch::nn::Embedding tokens;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head = nullptr;
};
SHERD_TORCH_MODULE(Net);

/// Batch `number`, the same on every rank.
inline torch::Tensor batch(int number) {
  torch::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + number));
  return torch::randint(0, NetImpl::kVocab, {2, 6}, generator, torch::kLong);
}

inline torch::Tensor net_loss(Net& model, int number) {
  const torch::Tensor x = batch(number);
  const torch::Tensor logits = model(x.slice(1, 0, 5));
  return torch::cross_entropy_loss(logits.reshape({-1, NetImpl::kVocab}), x.slice(1, 1, 6).reshape({-1}));
}

inline void net_backward(Net& model, int number) { net_loss(model, number).backward(); }

/// Returns plain libtorch's gradients, averaged over ranks that each begin with the weights of `first` and do
/// `pass`.
inline Values mean_gradients(const Net& first, int ranks, const std::function<void(Net&, int rank)>& pass) {
  at::set_num_threads(1);
  std::vector<Values> each;
  for (int r = 0; r < ranks; ++r) {
    Net plain;
    copy_weights(*first, *plain);
    pass(plain, r);
    each.push_back(gradients(*plain));
  }
  return mean(each);
}

/// A model with the weights of `first`, whose blocks are units.
inline Net sharded(const Net& first, const RankContext& rank, Strategy strategy,
                   FullyShardOptions options = {}) {
  options.strategy = strategy;
  Net model;
  copy_weights(*first, *model);
  sherd::torch::fully_shard<BlockImpl>(*model, mesh_of(rank), options);
  return model;
}

inline void wrap_blocks(Net& model, const sherd::DeviceMesh& mesh, const FullyShardOptions& options) {
  for (const auto& block : *model->blocks) sherd::torch::wrap(*block, mesh, options);
}

}  // namespace torch_test
