// SGD with momentum, as a program would write it: a third optimizer beside AdamW and Muon, by public headers
// only.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/kernels/ops.h>
#include <sherd/optim/optimizer.h>

#include "support/taped.h"

namespace sherd::test {

/// Per element: m += (1 - mu) * (g - m); w = (1 - lr * weight_decay) * w - lr * m.
class Sgd : public UpdateRule {
 public:
  static constexpr Algorithm kName{"sgd"};

  static UpdateRuleFactory factory(float mu) {
    UpdateRuleFactory f{.algorithm = kName, .settings = fmt::format("momentum {}", mu)};
    if (!(mu >= 0 && mu < 1)) f.problems.push_back(fmt::format("momentum {} must lie in [0, 1)", mu));
    f.make = [mu](Device& device, std::vector<UpdateItem> items) {
      return std::make_unique<Sgd>(device, std::move(items), mu);
    };
    return f;
  }

  Sgd(Device& device, std::vector<UpdateItem> items, float mu) : mu_(mu) {
    int64_t elements = 0;
    for (auto& item : items) {
      const int64_t n = item.param.shard_range().size();
      elements += n;
      slots_.push_back({std::move(item), Tensor::empty(device, {n}, DType::f32, "optimizer momentum")});
      ops::fill(device.compute(), slots_.back().momentum, 0);
    }
    updates_ = Tensor::empty(device, {elements}, DType::f32, "optimizer update");
  }

  void step(Stream& compute, double lr, const Tensor& skip) override {
    std::vector<MomentumSegment> momenta;
    std::vector<UpdateSegment> updates;
    int64_t at = 0;
    for (auto& [item, momentum] : slots_) {
      const int64_t n = momentum.numel();
      if (n == 0) continue;
      momenta.push_back({.buffer = momentum.data<float>(),
                         .gradient = item.param.grad_shard().data<float>(),
                         .count = n,
                         .at = at});
      updates.push_back({.weight = item.param.shard().data<float>(),
                         .count = n,
                         .at = at,
                         .decay = static_cast<float>(1 - lr * item.weight_decay),
                         .alpha = static_cast<float>(-lr)});
      at += n;
    }
    if (at == 0) return;
    ops::muon_momentum(compute, updates_, momenta, mu_, false, 0, skip);
    ops::muon_update(compute, updates, updates_, skip);
  }

  std::vector<StateTensor> state() const override {
    std::vector<StateTensor> all;
    for (auto& [item, momentum] : slots_) all.push_back({item.param, "momentum", momentum});
    return all;
  }

 private:
  struct Slot {
    UpdateItem item;
    Tensor momentum;
  };
  std::vector<Slot> slots_;
  Tensor updates_;  // what the latest step subtracts, parameter after parameter
  float mu_;
};

/// Parameters whose gradients follow from `step` alone: element i of each has sin(0.7 i + step), on every
/// rank.
struct GivenGradients : MadeGradients {
  Parameter add(const std::string& name, Shape shape) { return param(name, std::move(shape), normal(1)); }
  static std::vector<float> gradient(int64_t elements, int step) {
    std::vector<float> g(static_cast<size_t>(elements));
    for (size_t i = 0; i < g.size(); ++i)
      g[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + step));
    return g;
  }
  /// One step of the optimizer. `spoilt`: the first element of the last parameter is NaN, on this rank.
  void train(Optimizer& optimizer, double lr, bool spoilt = false) {
    spoilt_ = spoilt;
    Device& device = runtime_of(*this).device();
    run_pass(*this, Tensor::empty(device, {1}, DType::f32, "test"));
    optimizer.step(lr);
    ++step;
  }
  int step = 0;

  void put_gradients() override {
    for (auto& p : own_parameters()) {
      if (p.frozen()) continue;
      const Tensor g = p.grad();
      std::vector<float> values = gradient(g.numel(), step);
      if (spoilt_ && p == own_parameters().back()) values[0] = std::numeric_limits<float>::quiet_NaN();
      ops::copy_from_host(g.device().compute(), g, values.data(), g.nbytes());
    }
  }

 private:
  bool spoilt_ = false;
};

}  // namespace sherd::test
