// Whole programs of libtorch users: GANs, a network of its own derivatives, ResNet, a translator, an LSTM with Muon.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/optim/muon/coefficients.h>
#include <sherd/optim/muon/muon_options.h>
#include <sherd/torch/sync_batch_norm.h>

#include "torch/program.h"

namespace torch_test {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

void train_parameters(nn::Module& network, bool on) {
  for (auto& p : network.parameters()) p.set_requires_grad(on);
}

// DCGAN (Radford et al. 2015, arXiv:1511.06434), with the judge frozen in the maker's pass.
struct MakerStageImpl : nn::Module {
  MakerStageImpl(int64_t in, int64_t out, int64_t stride)
      : up(register_module(
            "up",
            nn::ConvTranspose2d(
                nn::ConvTranspose2dOptions(in, out, 4).stride(stride).padding(stride - 1).bias(false)))),
        norm(register_module("norm", nn::BatchNorm2d(out))) {}
  Tensor forward(const Tensor& x) { return torch::relu(norm(up(x))); }
  nn::ConvTranspose2d up;
  nn::BatchNorm2d norm;
};
SHERD_TORCH_MODULE(MakerStage);

struct MakerImpl : nn::Module {
  MakerImpl() {
    register_module("first", first);
    register_module("second", second);
    last = register_module("last", nn::Conv2d(nn::Conv2dOptions(4, 1, 3).padding(1)));
  }
  Tensor forward(const Tensor& noise) { return torch::tanh(last(second(first(noise)))); }
  MakerStage first{3, 6, 1}, second{6, 4, 2};
  nn::Conv2d last = nullptr;
};
SHERD_TORCH_MODULE(Maker);

struct JudgeStageImpl : nn::Module {
  JudgeStageImpl(int64_t in, int64_t out)
      : down(register_module("down", nn::Conv2d(nn::Conv2dOptions(in, out, 4).stride(2).padding(1)))),
        norm(register_module("norm", nn::BatchNorm2d(out))) {}
  Tensor forward(const Tensor& x) { return torch::leaky_relu(norm(down(x)), 0.2); }
  nn::Conv2d down;
  nn::BatchNorm2d norm;
};
SHERD_TORCH_MODULE(JudgeStage);

struct JudgeImpl : nn::Module {
  JudgeImpl() {
    register_module("first", first);
    register_module("second", second);
    last = register_module("last", nn::Linear(4 * 2 * 2, 1));
  }
  Tensor forward(const Tensor& image) { return last(second(first(image)).flatten(1)); }
  JudgeStage first{1, 3}, second{3, 4};
  nn::Linear last = nullptr;
};
SHERD_TORCH_MODULE(Judge);

struct Dcgan : Program {
  std::vector<nn::Module*> networks() override { return {judge.get(), maker.get()}; }
  void wrap(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) override {
    for (nn::Module* const stage : std::initializer_list<nn::Module*>{
             maker->first.get(), maker->second.get(), judge->first.get(), judge->second.get()})
      sherd::torch::wrap(*stage, mesh, options);
  }
  Tensor loss(size_t which, int rank, int step) override {
    const Tensor noise = data({3, 3, 1, 1}, rank, step, static_cast<int>(which));
    train_parameters(*judge, which == 0);
    const auto says = [&](const Tensor& image, bool real) {
      const Tensor score = judge(image);
      return torch::binary_cross_entropy_with_logits(
          score, real ? torch::ones_like(score) : torch::zeros_like(score));
    };
    if (which == 1) return says(maker(noise), true);
    Tensor made;
    {
      const torch::NoGradGuard no_grad;
      made = maker(noise);
    }
    return says(data({3, 1, 8, 8}, rank, step, 2), true) + says(made, false);
  }
  Maker maker;
  Judge judge;
};

TEST(TorchPrograms, DcganWithFreezingHasTheBitsOfPlainLibtorch) {
  const auto options = torch::optim::AdamOptions(2e-3).betas(std::make_tuple(0.5, 0.999));
  TrainingTest<Dcgan, TorchUpdates<torch::optim::Adam>>(options, true).run();
}

// Layers with second derivatives, each a unit.
struct SmoothImpl : nn::Module {
  SmoothImpl(int64_t in, int64_t out) : linear(register_module("linear", nn::Linear(in, out))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(linear(x)); }
  nn::Linear linear;
};
SHERD_TORCH_MODULE(Smooth);

struct SurfaceImpl : nn::Module {
  SurfaceImpl(int64_t in, int64_t out) {
    layers->push_back(Smooth(in, 6));
    layers->push_back(Smooth(6, 6));
    register_module("layers", layers);
    last = register_module("last", nn::Linear(nn::LinearOptions(6, out).bias(false)));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (const auto& layer : *layers) h = layer->as<Smooth>()->forward(h);
    return last(h);
  }
  void wrap_layers(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) {
    for (const auto& layer : *layers) sherd::torch::wrap(*layer, mesh, options);
  }
  nn::ModuleList layers;
  nn::Linear last = nullptr;
};
SHERD_TORCH_MODULE(Surface);

Tensor slope_of(const Tensor& out, const Tensor& at) {
  return torch::autograd::grad({out}, {at}, {torch::ones_like(out)}, true, true)[0];
}

// WGAN-GP (Gulrajani et al. 2017, arXiv:1704.00028).
struct Wgan : Program {
  std::vector<nn::Module*> networks() override { return {critic.get(), maker.get()}; }
  void wrap(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) override {
    critic->wrap_layers(mesh, options);
    maker->wrap_layers(mesh, options);
  }
  Tensor loss(size_t which, int rank, int step) override {
    const Tensor noise = data({5, 3}, rank, step, static_cast<int>(which));
    train_parameters(*critic, which == 0);
    if (which == 1) return -critic(maker(noise)).mean();
    Tensor fake;
    {
      const torch::NoGradGuard no_grad;
      fake = maker(noise);
    }
    const Tensor real = data({5, 2}, rank, step, 2);
    const Tensor between = (0.3 * real + 0.7 * fake).requires_grad_();
    const Tensor slope = slope_of(critic(between), between);
    return critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(2, {1}) - 1).pow(2).mean();
  }
  Surface critic{2, 1}, maker{3, 2};
};

TEST(TorchPrograms, WganWithGradientPenaltyTrainsAsInPlainLibtorch) {
  const auto options = torch::optim::SGDOptions(1e-2).momentum(0.9);
  TrainingTest<Wgan, TorchUpdates<torch::optim::SGD>>(options, false).run();
}

// A network whose second derivatives are those of a solution of u_xx + u_yy = u (Raissi et al. 2019).
struct Residual : Program {
  std::vector<nn::Module*> networks() override { return {field.get()}; }
  void wrap(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) override {
    field->wrap_layers(mesh, options);
  }
  Tensor loss(size_t, int rank, int step) override {
    const Tensor x = data({5, 2}, rank, step).requires_grad_();
    const Tensor u = field(x), first = slope_of(u, x);
    Tensor sum = -u.squeeze(1);
    for (int64_t d = 0; d < 2; ++d) sum = sum + slope_of(first.select(1, d), x).select(1, d);
    return sum.pow(2).mean() + u.pow(2).mean();
  }
  Surface field{2, 1};
};

TEST(TorchPrograms, NetworkOfItsOwnSecondDerivativesTrainsAsInPlainLibtorch) {
  const auto options = torch::optim::SGDOptions(1e-2).momentum(0.9);
  TrainingTest<Residual, TorchUpdates<torch::optim::SGD>>(options, false).run();
}

// ResNet (He et al. 2015, arXiv:1512.03385) with statistics of all ranks' batches; plain libtorch has the whole batch.
template <class Norm>
struct ResidualBlockImpl : nn::Module {
  explicit ResidualBlockImpl(int64_t width)
      : first(register_module("first", convolution(width))),
        second(register_module("second", convolution(width))),
        norm_first(register_module("norm_first", Norm(nn::BatchNormOptions(width)))),
        norm_second(register_module("norm_second", Norm(nn::BatchNormOptions(width)))) {}
  Tensor forward(const Tensor& x) {
    return torch::relu(x + norm_second(second(torch::relu(norm_first(first(x))))));
  }
  static nn::Conv2d convolution(int64_t width) {
    return nn::Conv2d(nn::Conv2dOptions(width, width, 3).padding(1).bias(false));
  }
  nn::Conv2d first, second;
  Norm norm_first, norm_second;
};

template <class Norm>
struct ResNetImpl : nn::Module {
  using Block = sherd::torch::Holder<ResidualBlockImpl<Norm>>;
  ResNetImpl() {
    stem = register_module("stem", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
    for (int i = 0; i < 2; ++i) blocks->push_back(Block(4));
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& image) {
    Tensor h = stem(image);
    for (const auto& block : *blocks) h = block->template as<Block>()->forward(h);
    return head(h.mean(std::vector<int64_t>{2, 3}));
  }
  nn::Conv2d stem = nullptr;
  nn::ModuleList blocks;
  nn::Linear head = nullptr;
};

template <class Norm>
struct ResNet : Program {
  std::vector<nn::Module*> networks() override { return {net.get()}; }
  void wrap(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) override {
    for (const auto& block : *net->blocks) sherd::torch::wrap(*block, mesh, options);
    sherd::torch::share_batches(*net, mesh);
  }
  bool whole_batch() const override { return std::is_same_v<Norm, nn::BatchNorm2d>; }
  Tensor loss(size_t, int rank, int step) override {
    std::vector<Tensor> images, targets;
    for (int r = whole_batch() ? 0 : rank; r < (whole_batch() ? ranks : rank + 1); ++r) {
      images.push_back(data({3, 2, 5, 5}, r, step));
      targets.push_back(torch::arange(3));
    }
    return torch::cross_entropy_loss(net(torch::cat(images)), torch::cat(targets));
  }
  sherd::torch::Holder<ResNetImpl<Norm>> net;
};

TEST(TorchPrograms, ResNetWithSyncBatchNormTrainsAsOneRankWithTheWholeBatch) {
  const auto options = torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(1e-3);
  TrainingTest<ResNet<sherd::torch::SyncBatchNorm>, TorchUpdates<torch::optim::SGD>, ResNet<nn::BatchNorm2d>>(
      options, false)
      .run();
}

// A translator of libtorch's layers, each a unit (Vaswani et al. 2017, arXiv:1706.03762).
struct TranslatorImpl : nn::Module {
  static constexpr int64_t kWords = 11, kWidth = 8;
  using Encoder = sherd::torch::Holder<nn::TransformerEncoderLayerImpl>;
  using Decoder = sherd::torch::Holder<nn::TransformerDecoderLayerImpl>;
  TranslatorImpl() {
    from = register_module("from", nn::Embedding(kWords, kWidth));
    to = register_module("to", nn::Embedding(kWords, kWidth));
    for (int i = 0; i < 2; ++i) {
      encoder->push_back(
          Encoder(nn::TransformerEncoderLayerOptions(kWidth, 2).dim_feedforward(12).dropout(0)));
      decoder->push_back(
          Decoder(nn::TransformerDecoderLayerOptions(kWidth, 2).dim_feedforward(12).dropout(0)));
    }
    register_module("encoder", encoder);
    register_module("decoder", decoder);
    head = register_module("head", nn::Linear(kWidth, kWords));
  }
  Tensor forward(const Tensor& source, const Tensor& target) {
    Tensor memory = from(source), h = to(target);
    const Tensor later =
        nn::TransformerImpl::generate_square_subsequent_mask(target.size(0)).to(h.scalar_type());
    for (const auto& layer : *encoder) memory = layer->as<Encoder>()->forward(memory, {}, {});
    for (const auto& layer : *decoder) h = layer->as<Decoder>()->forward(h, memory, later, {}, {}, {});
    return head(h);
  }
  nn::Embedding from = nullptr, to = nullptr;
  nn::ModuleList encoder, decoder;
  nn::Linear head = nullptr;
};
SHERD_TORCH_MODULE(Translator);

struct Translation : Program {
  std::vector<nn::Module*> networks() override { return {net.get()}; }
  void wrap(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) override {
    for (const auto& layers : {net->encoder, net->decoder})
      for (const auto& layer : *layers) sherd::torch::wrap(*layer, mesh, options);
  }
  Tensor loss(size_t, int rank, int step) override {
    const Tensor source = words(TranslatorImpl::kWords, {4, 3}, rank, step);
    const Tensor target = words(TranslatorImpl::kWords, {5, 3}, rank, step, 1);
    return torch::cross_entropy_loss(net(source, target.slice(0, 0, 4)).reshape({-1, TranslatorImpl::kWords}),
                                     target.slice(0, 1, 5).reshape({-1}));
  }
  Translator net;
};

TEST(TorchPrograms, TranslatorOfLayersThatAreUnitsHasTheBitsOfPlainLibtorch) {
  const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);
  TrainingTest<Translation, TorchUpdates<torch::optim::AdamW>>(options, true).run();
}

// sherd's Muon for the gates' matrices and AdamW for the rest; the plain one in libtorch's operations.
struct MuonUpdates {
  using Options = double;                 // learning rate
  static constexpr double kFast = 0.95f;  // MuonOptions::momentum
  static int64_t gates(const std::string& name) { return name.find("weight_") != name.npos ? 4 : 1; }
  static void prepare(nn::Module& network) {
    sherd::torch::route(network, {.rules = {{.pattern = "weight_", .algorithm = sherd::Algorithm::muon},
                                            {.pattern = "", .algorithm = sherd::Algorithm::adamw}}});
  }
  struct Sharded {
    Sharded(nn::Module& network, double lr) : rate(lr), state(network) {}
    void step() { state.step(rate); }
    double rate;
    sherd::torch::Optimizer state;
  };
  struct Plain {
    Plain(nn::Module& network, double lr) : rate(lr) {
      std::vector<Tensor> others;
      for (auto& p : network.named_parameters())
        if (gates(p.key()) > 1) {
          momentum.emplace_back(p.value(), torch::zeros_like(p.value()));
        } else {
          others.push_back(p.value());
        }
      const sherd::AdamWOptions o;
      adamw = std::make_unique<torch::optim::AdamW>(
          others, torch::optim::AdamWOptions(lr).betas({o.beta1, o.beta2}).eps(o.eps).weight_decay(0));
    }
    static Tensor orthogonal(const Tensor& block) {
      Tensor x = block.size(0) > block.size(1) ? block.t() : block;
      x = x / (x.norm() + 1e-7);
      for (const sherd::Coefficients& c : sherd::coefficient_steps("jordan")) {
        const Tensor a = x.mm(x.t());
        x = c.a * x + (c.b * a + c.c * a.mm(a)).mm(x);
      }
      return block.size(0) > block.size(1) ? x.t() : x;
    }
    void step() {
      adamw->step();
      const torch::NoGradGuard no_grad;
      for (auto& [weight, buffer] : momentum) {
        buffer.lerp_(weight.grad(), 1 - kFast);
        const Tensor input = weight.grad().lerp(buffer, kFast);
        const int64_t rows = weight.size(0) / 4;
        const double scale = sherd::update_scale({}, rows, weight.size(1));
        for (int64_t gate = 0; gate < 4; ++gate)
          weight.slice(0, gate * rows, (gate + 1) * rows)
              .sub_(orthogonal(input.slice(0, gate * rows, (gate + 1) * rows)), rate * scale);
      }
    }
    double rate;
    std::vector<std::pair<Tensor, Tensor>> momentum;
    std::unique_ptr<torch::optim::AdamW> adamw;
  };
};

struct TaggerImpl : nn::Module {
  static constexpr int64_t kWords = 9, kWidth = 6;
  TaggerImpl() {
    words = register_module("words", nn::Embedding(kWords, kWidth));
    register_module("first", first);
    register_module("second", second);
    head = register_module("head", nn::Linear(kWidth, kWords));
  }
  Tensor forward(const Tensor& text) { return head(std::get<0>(second(std::get<0>(first(words(text)))))); }
  nn::Embedding words = nullptr;
  sherd::torch::Holder<nn::LSTMImpl> first{nn::LSTMOptions(kWidth, kWidth)},
      second{nn::LSTMOptions(kWidth, kWidth)};
  nn::Linear head = nullptr;
};
SHERD_TORCH_MODULE(Tagger);

struct Tagging : Program {
  std::vector<nn::Module*> networks() override { return {net.get()}; }
  void wrap(const sherd::DeviceMesh& mesh, const FullyShardOptions& options) override {
    sherd::torch::wrap(*net->first, mesh, options);
    sherd::torch::wrap(*net->second, mesh, options);
  }
  Tensor loss(size_t, int rank, int step) override {
    const Tensor text = words(TaggerImpl::kWords, {6, 3}, rank, step);
    return torch::cross_entropy_loss(net(text.slice(0, 0, 5)).reshape({-1, TaggerImpl::kWords}),
                                     text.slice(0, 1, 6).reshape({-1}));
  }
  Tagger net;
};

TEST(TorchPrograms, LstmTrainsByMuonOfItsGatesAsInPlainLibtorch) {
  TrainingTest<Tagging, MuonUpdates>(1e-2, false).run();
}

}  // namespace
}  // namespace torch_test
