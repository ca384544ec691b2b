// The nets of tests/golden/make_usages.py, with the values that it gives them.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sherd/sherd.h>

namespace sherd::test::golden {

using nn::Var;

constexpr int64_t kWidth = 12, kHidden = 20, kRows = 6, kOut = 4, kRank = 4;

/// A sine of a whole number of thousandths, so that no rounding before it matters.
inline double value(int64_t i, int64_t salt) {
  return std::sin(static_cast<double>((701 * i * i + 1301 * salt) % 6283) / 1000.0);
}
inline Init values(int64_t salt, double factor = 0.25, double offset = 0) {
  return from_function([=](int64_t i) { return static_cast<float>(offset + factor * value(i, salt)); });
}
inline Tensor tensor(RankContext& rank, Shape shape, int64_t salt) {
  Tensor t = Tensor::empty(*rank.device, std::move(shape), DType::f32, "data");
  std::vector<float> all(static_cast<size_t>(t.numel()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(value(static_cast<int64_t>(i), salt));
  ops::copy_from_host(rank.device->compute(), t, all.data(), t.nbytes());
  rank.device->compute().synchronize();
  return t;
}
/// Differ on every rank.
inline Tensor batch(RankContext& rank, int number) {
  return tensor(rank, {kRows, kWidth}, 1000 + 16 * number + rank.world->rank());
}
inline Tensor target(RankContext& rank, int number) {
  return tensor(rank, {kRows, kOut}, 5000 + 16 * number + rank.world->rank());
}

/// y = x + down(gelu(up(norm(x)))).
struct Block : nn::Module<Block> {
  /// `tied`: another block's up, used here as well.
  explicit Block(int64_t salt, const Parameter* tied = nullptr)
      : norm(param("norm.weight", {kWidth}, values(salt, 0.125, 1))),
        up(tied ? tie("up.weight", *tied) : param("up.weight", {kHidden, kWidth}, values(salt + 1))),
        down(param("down.weight", {kWidth, kHidden}, values(salt + 2))),
        salt_(salt) {}
  /// A pair of low rank beside `up`, which is frozen.
  void adapt() {
    up.freeze();
    a = param("lora_a.weight", {kRank, kWidth}, values(salt_ + 3));
    b = param("lora_b.weight", {kHidden, kRank}, values(salt_ + 4));
  }
  Var forward(const Var& x) {
    const Var n = nn::rms_norm(x, norm);
    if (fails_in == Fails::forward) throw std::runtime_error("a block that fails");
    const Var h = a.defined() ? nn::gelu(nn::add_linear(nn::linear(n, up), nn::linear(n, a), b))
                              : nn::linear_gelu(n, up);
    const Var y = nn::add_linear(x, h, down);
    if (fails_in != Fails::backward) return y;
    return nn::function(
        {y}, [&](Stream&) { return y.value(); },
        [](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> {
          throw std::runtime_error("a block that fails");
        });
  }
  Parameter norm, up, down, a, b;
  enum class Fails { nowhere, forward, backward } fails_in = Fails::nowhere;

 private:
  int64_t salt_;
};

/// Three outputs, which callers may use or not.
struct Fork : nn::Module<Fork> {
  Parameter w = param("weight", {3 * kWidth, kWidth}, values(91));
  std::vector<Var> forward(const Var& x) {
    return nn::split_columns(nn::linear(x, w), {kWidth, kWidth, kWidth});
  }
};

/// Three blocks and a head, used as `use` says.
struct Net : nn::Module<Net> {
  struct Options {
    bool tied = false, lora = false, fork = false;
    int frozen = -1;  // a block
  };
  explicit Net(const Options& o) {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(std::make_unique<Block>(10 * i, o.tied && i == 2 ? &blocks[0]->up : nullptr));
      child("blocks." + std::to_string(i), *blocks.back());
    }
    if (o.lora) block(1).adapt();
    if (o.frozen >= 0)
      for (Parameter p : block(o.frozen).own_parameters()) p.freeze();
    if (o.fork) child("fork", *(fork = std::make_unique<Fork>()));
    head = param("head.weight", {kOut, kWidth}, values(90));
  }
  Var forward(const Var& x) { return nn::linear(use(*this, x), head); }
  Block& block(int i) { return *blocks[static_cast<size_t>(i)]; }
  void call(const std::vector<int>& order) {
    use = [order](Net& net, Var x) {
      for (const int i : order) x = net.block(i)(x);
      return x;
    };
  }

  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<Fork> fork;
  Parameter head;
  std::function<Var(Net&, const Var&)> use = [](Net& net, Var x) {
    for (auto& b : net.blocks) x = (*b)(x);
    return x;
  };
};

/// Two players in one root. Each has a unit, and the root's own group holds a matrix of either.
struct Gan : nn::Module<Gan> {
  Block maker{0}, judge{10};
  Parameter maker_out = param("maker_out.weight", {kWidth, kWidth}, values(92)),
            judge_out = param("judge_out.weight", {kOut, kWidth}, values(93));
  Gan() {
    child("maker", maker);
    child("judge", judge);
  }
  /// Returns the judge's output for the maker's output for x. With `real`, also for that, and then the maker
  /// gets no gradient.
  std::vector<Var> forward(const Var& x, const Var& real) {
    const Var made = nn::linear(maker(x), maker_out);
    if (!real.defined()) return {judged(made)};
    return {judged(real), judged(made.detach())};
  }

 private:
  Var judged(const Var& x) { return nn::linear(judge(x), judge_out); }
};

}  // namespace sherd::test::golden
