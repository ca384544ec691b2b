#include <sherd/torch/reset_parameters.h>

#include <torch/nn/init.h>
#include <torch/nn/modules.h>

#include <sherd/torch/detail/can_reset.h>

namespace sherd::torch {
namespace {

namespace nn = ::torch::nn;

/// Calls f(M&) if the module is one of the types M.
template <class... M, class F>
bool with_one_of(nn::Module& module, F&& f) {
  const auto attempt = [&]<class T>(T* known) {
    if (known != nullptr) f(*known);
    return known != nullptr;
  };
  return (attempt(dynamic_cast<M*>(&module)) || ...);
}

/// Calls f(M&) if the module is one of libtorch's with a reset_parameters() of its own parameters. Modules
/// whose function resets their children are left out: each child is reset by itself.
template <class F>
bool with_known(nn::Module& module, F&& f) {
  return with_one_of<nn::LinearImpl, nn::BilinearImpl, nn::EmbeddingImpl, nn::EmbeddingBagImpl,
                     nn::LayerNormImpl, nn::GroupNormImpl, nn::BatchNorm1dImpl, nn::BatchNorm2dImpl,
                     nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl,
                     nn::InstanceNorm3dImpl, nn::Conv1dImpl, nn::Conv2dImpl, nn::Conv3dImpl,
                     nn::ConvTranspose1dImpl, nn::ConvTranspose2dImpl, nn::ConvTranspose3dImpl, nn::RNNImpl,
                     nn::LSTMImpl, nn::GRUImpl, nn::RNNCellImpl, nn::LSTMCellImpl, nn::GRUCellImpl>(module,
                                                                                                    f);
}

}  // namespace

namespace detail {

bool can_reset(nn::Module& module) {
  const auto nothing = [](auto&) {};
  return dynamic_cast<Resettable*>(&module) != nullptr || with_known(module, nothing) ||
         with_one_of<nn::MultiheadAttentionImpl, nn::PReLUImpl>(module, nothing);
}

}  // namespace detail

bool reset_parameters(nn::Module& module) {
  const at::NoGradGuard no_grad;
  if (auto* own = dynamic_cast<Resettable*>(&module)) {
    own->reset_parameters();
    return true;
  }
  return with_known(module, [](auto& known) { known.reset_parameters(); }) ||
         with_one_of<nn::MultiheadAttentionImpl>(module, [](auto& known) { known._reset_parameters(); }) ||
         with_one_of<nn::PReLUImpl>(module, [](auto& known) { known.weight.fill_(known.options.init()); });
}

}  // namespace sherd::torch
