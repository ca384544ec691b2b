// First writer of a gradient: unwritten memory is never read, and unwritten gradients become zero.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "support/chain.h"

namespace sherd::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kRows = 2;

// Matrices whose gradients are written in every order. One product adds kRows times the rank's value.
class Writers : public nn::Module<Writers> {
 public:
  /// Odd sizes: the buffers of two of them, which share memory, are divided and padded differently.
  explicit Writers(int64_t n) {
    const auto matrix = [&](const char* name, int64_t rows) { return param(name, {rows, n}, normal(1)); };
    never_ = matrix("never", 3);
    twice_ = matrix("twice", 5);
    asked_ = matrix("asked", 2);
    mixed_ = matrix("mixed", 7);
    empty_ = param("empty", {0, n}, normal(1));
  }
  /// Value that a product adds here.
  float value = 0;
  /// Every gradient becomes NaN instead.
  bool poison = false;
  /// This microbatch, nothing is written.
  bool idle = false;
  std::vector<float> betas;
  /// Content at the first write of `twice`.
  float found = 0;
  Parameter never_, twice_, asked_, mixed_, empty_;
  nn::Var forward(const nn::Var& x) {
    return with_gradients(x, own_parameters(), [this, s = &x.stream()] { write(*s); });
  }

 private:
  void write(Stream& s) {
    if (poison)
      for (auto& p : own_parameters()) ops::fill(s, p.grad(), kNan);
    if (poison || idle) return;
    multiply(s, overwrite(s, twice_));
    multiply(s, overwrite(s, twice_));
    asked_.grad();
    multiply(s, {mixed_.grad(), 1});
    multiply(s, overwrite(s, mixed_));
    multiply(s, {mixed_.grad(), 1});
    empty_.grad_for_overwrite();
  }
  GradTarget overwrite(Stream& s, const Parameter& p) {
    const GradTarget target = p.grad_for_overwrite();
    if (betas.empty()) found = ops::to_floats(s, target.grad).front();
    betas.push_back(target.beta);
    return target;
  }
  void multiply(Stream& s, const GradTarget& to) const {
    const auto filled = [&](Shape shape, double v) {
      Tensor t = Tensor::empty(s.device(), std::move(shape), DType::f32, "test");
      ops::fill(s, t, v);
      return t;
    };
    ops::gemm(s, to.grad, filled({kRows, to.grad.size(0)}, value), true, filled({kRows, to.grad.size(1)}, 1),
              false, 1, to.beta);
  }
};

struct Model : nn::Module<Model> {
  Model() {
    for (const int64_t n : {11, 3, 7, 1, 5}) {
      parts.push_back(std::make_unique<Writers>(n));
      child(fmt::format("parts.{}", parts.size() - 1), *parts.back());
    }
    scale = param("scale", {1}, constant(1));
  }
  std::vector<std::unique_ptr<Writers>> parts;
  Parameter scale;
  nn::Var forward(nn::Var x) {
    for (auto& p : parts) x = (*p)(x);
    return x;
  }
};

struct GradientCase {
  int ranks = 1;
  FullyShardOptions options;
  int microbatches = 1;
  bool overlap_reduce = true;
};

// The gradient of every part's `p`, in multiples of what one product adds, averaged.
void expect_gradient(const Model& model, Parameter Writers::*p, float products, float unit) {
  for (auto& part : model.parts) {
    const Parameter& parameter = (*part).*p;
    const auto got = ops::to_floats(parameter.grad_shard().device().compute(), parameter.grad_shard());
    for (const float g : got) ASSERT_EQ(g, products * unit) << parameter.name();
  }
}

// All of this rank's cell of the reduced gradients, in memory that the host can read. A staged layout has its
// padding in the staging buffer and not in the gradient's.
void expect_padding_without_nan(const ParamGroup& group) {
  if (std::string(TEST_KERNELS) != "cpu" || group.stages_gather()) return;
  const Parameter& p = group.params().front();
  const int64_t begin = group.layout().local_begin(ParamId(p.index_in_group()), RankId(group.cell())).value;
  const float* cell = p.grad_shard().data<float>() - begin;
  for (int64_t i = 0; i < group.layout().slice(); ++i)
    ASSERT_FALSE(std::isnan(cell[i])) << group.unit() << ", element " << i;
}

void check(const GradientCase& c) {
  SCOPED_TRACE(fmt::format("{} ranks, {}, layout {}, {} microbatches", c.ranks, name_of(c.options.strategy),
                           static_cast<int>(c.options.layout), c.microbatches));
  launch(c.ranks, [&](RankContext& r) {
    Model model;
    for (auto& p : model.parts) p->never_.set_cut(CutClass::row), p->mixed_.set_cut(CutClass::row);
    const DeviceMesh mesh(r.world, {{"shard", c.ranks}});
    for (auto& p : model.parts) fully_shard(*p, mesh, c.options);
    fully_shard(model, mesh, c.options,
                {.overlap_reduce = c.overlap_reduce, .allow_unused = true, .ignored = {"parts.1.mixed"}});
    ShardRuntime& runtime = runtime_of(model);
    const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
    const auto pass = [&](int microbatches, int idle) {
      for (int m = 0; m < microbatches; ++m) {
        for (auto& p : model.parts) p->betas.clear(), p->idle = m == idle;
        runtime.set_last_microbatch(m + 1 == microbatches);
        run_pass(model, x, x);
      }
      runtime.wait_gradients();
    };
    for (auto& p : model.parts) {
      p->value = static_cast<float>(r.world->rank() + 1);
      p->poison = true;
    }
    pass(c.microbatches, -1);
    for (auto& p : model.parts) p->poison = false;
    const float own = static_cast<float>(kRows * (r.world->rank() + 1));
    const float mean = static_cast<float>(kRows * (c.ranks + 1)) / 2;
    for (const int idle : {-1, 0, c.microbatches - 1}) {
      reset_step(model);
      pass(c.microbatches, idle);
      const auto n = static_cast<float>(idle < 0 ? c.microbatches : c.microbatches - 1);
      expect_gradient(model, &Writers::never_, 0, mean);
      expect_gradient(model, &Writers::asked_, 0, mean);
      expect_gradient(model, &Writers::twice_, 2 * n, mean);
      const Parameter& ignored = model.parts[1]->mixed_;
      for (auto& p : model.parts)
        for (const float g : ops::to_floats(r.device->compute(), p->mixed_.grad_shard()))
          ASSERT_EQ(g, 3 * n * (p->mixed_ == ignored ? own : mean)) << p->mixed_.name();
      for (auto& p : model.parts) expect_padding_without_nan(p->never_.group());
    }
  });
}

TEST(Gradient, WhatIsOverwrittenAddedToOrLeftAloneIsTheSumUnderEveryStrategy) {
  for (const int ranks : {1, 2, 4})
    for (const Strategy s : kEveryStrategy)
      for (const LayoutPolicy layout :
           {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
        for (const int microbatches : {1, 3}) check({ranks, {.strategy = s, .layout = layout}, microbatches});
}

TEST(Gradient, TheSameWhenTheWireIsNarrowOrTheReductionWaitedFor) {
  for (const Strategy s : kEveryStrategy) {
    check({2, {.strategy = s, .reduce_dtype = DType::bf16}, 2});
    check({2, {.strategy = s}, 2, false});
  }
}

TEST(Gradient, TheFirstWriterOverwritesAndNothingIsWrittenBefore) {
  for (const int ranks : {1, 2}) {
    for (const Strategy s : kEveryStrategy) {
      launch(ranks, [&](RankContext& r) {
        Writers model(3);
        fully_shard(model, mesh_of(r), {.strategy = s}, {.allow_unused = true});
        const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
        ShardRuntime& runtime = runtime_of(model);
        const auto betas = [&](bool last) {
          runtime.set_last_microbatch(last);
          model.betas.clear();
          run_pass(model, x, x);
          return model.betas;
        };
        model.poison = true;
        betas(false);
        reset_step(model);
        model.poison = false;
        // of `twice`, `twice` and `mixed`
        const bool each = ranks > 1 && (s == Strategy::optim_grads || s == Strategy::optim_grads_params);
        const std::vector<float> first{0, 1, 1}, later{1, 1, 1};
        EXPECT_EQ(betas(false), first) << name_of(s);
        EXPECT_TRUE(std::isnan(model.found)) << name_of(s) << " found " << model.found;
        EXPECT_EQ(betas(true), each ? first : later) << name_of(s);
        EXPECT_THROW(model.twice_.grad_for_overwrite(), InvalidArgument);
        runtime.wait_gradients();
        r.device->compute().synchronize();
      });
    }
  }
}

}  // namespace
}  // namespace sherd::test
