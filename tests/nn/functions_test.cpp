// Gradients of functions against differences.
#include <sherd/kernels/device/trace.h>
#include <sherd/nn/detail/packed_linear.h>

#include <cmath>

#include "differences.h"
#include "loose_parameters.h"
#include "nets.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

TEST(Functions, WithoutParametersHaveTheirDerivative) {
  auto device = make_cpu_device();
  const auto x = [&](Shape shape, uint64_t seed = 1) { return random(*device, std::move(shape), seed); };
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::gelu(v[0])); }, {x({3, 5})});
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::add(v[0], v[1])); },
                  {x({3, 5}), x({3, 5}, 2)});
  expect_gradient([](Tape&, const auto& v) { return weighted(-1.5f * v[0]); }, {x({7})});
  expect_gradient([](Tape&, const auto& v) { return nn::mean(nn::gelu(v[0])); }, {x({9})});
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::sum(nn::gelu(v[0]))); }, {x({9})});
  expect_gradient(
      [](Tape&, const auto& v) {
        return weighted(nn::view(nn::gelu(v[0]), {5, 3}));
      },
      {x({3, 5})});
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::causal_attention(v[0], 2, 2)); },
                  {x({6, 24})});
}

// swiglu_linear() computes unsaved values again: value and gradients are those of the two functions, bit by
// bit.
TEST(Functions, SwigluLinearIsSwigluAndLinear) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  const Tensor x = random(*device, {5, 12}, 1), weights = random(*device, {4, 6}, 2),
               before = random(*device, {5, 4}, 3);
  for (const bool residual : {false, true}) {
    const auto run = [&](bool together) {
      LooseParameters loose;
      const Parameter down = loose.add(weights);
      Tape tape;
      const Var in = tape.leaf(x), base = tape.leaf(before);
      Var y;
      if (together) {
        y = nn::swiglu_linear(in, down, residual ? base : Var());
      } else {
        y = residual ? nn::add_linear(base, nn::swiglu(in), down) : nn::linear(nn::swiglu(in), down);
      }
      tape.backward(weighted(y));
      std::vector<std::vector<float>> all{ops::to_floats(s, y.value()), ops::to_floats(s, tape.gradient(in)),
                                          ops::to_floats(s, loose.grad(0))};
      if (residual) all.push_back(ops::to_floats(s, tape.gradient(base)));
      return all;
    };
    EXPECT_EQ(run(true), run(false)) << residual;
  }
  LooseParameters loose;
  EXPECT_THROW(nn::swiglu_linear(Var(x), loose.add(random(*device, {4, 5}, 4))), ShapeMismatch);
}

// Result of packed_linear(), its gradients, and the number of its products.
struct PackedRun {
  std::vector<std::vector<float>> values;
  int64_t products = 0;

  PackedRun(int64_t rows, nn::detail::WeightLayout layout, bool adjacent, bool biased) {
    auto device = make_cpu_device();
    Stream& s = device->compute();
    const auto trace = std::make_shared<Trace>();
    device->set_trace(trace);
    LooseParameters loose;
    std::vector<Parameter> weights, biases;
    const Tensor memory = random(*device, {15 * 6}, 1);
    int64_t at = 0;
    for (const int64_t out : {8, 4, 3}) {
      const Shape shape = layout == nn::detail::WeightLayout::out_in ? Shape{out, 6} : Shape{6, out};
      Tensor w = memory.flat(at, at + out * 6).view(shape);
      at += out * 6;
      if (!adjacent) {
        const Tensor view = w;
        w = Tensor::empty(*device, shape, DType::f32, "test");
        ops::copy(s, w, view);
      }
      weights.push_back(loose.add(w));
      if (biased) biases.push_back(loose.add(random(*device, {out}, static_cast<uint64_t>(out))));
    }
    Tape tape;
    const Var x = tape.leaf(random(*device, {rows, 6}, 2));
    trace->set_enabled(true);
    const Var y = nn::detail::packed_linear(x, weights, biases, layout);
    trace->set_enabled(false);
    const Var loss = weighted(y);
    trace->set_enabled(true);
    tape.backward(loss);
    trace->set_enabled(false);
    values = {ops::to_floats(s, y.value()), ops::to_floats(s, tape.gradient(x))};
    for (const auto& all : {weights, biases})
      for (const Parameter& p : all) values.push_back(ops::to_floats(s, p.grad()));
    for (const TraceRecord& r : trace->records()) products += r.what.starts_with("gemm");
  }
};

// Weights side by side, as q, k and v: one product forward and one for the input's gradient, where x has no fewer rows
// than the result has columns. Whether they are adjacent in memory changes no bit.
TEST(Functions, PackedLinearIsOneProduct) {
  using nn::detail::WeightLayout;
  for (const WeightLayout layout : {WeightLayout::out_in, WeightLayout::in_out})
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(testing::Message() << (layout == WeightLayout::in_out) << biased);
      const PackedRun one(15, layout, true, biased), copied(15, layout, false, biased),
          each(14, layout, true, biased);
      EXPECT_EQ(one.products, 1 + 3 + 1);
      EXPECT_EQ(each.products, 3 + 3 + 3);
      EXPECT_EQ(copied.values, one.values);
      for (size_t i = 0; i < each.values[0].size(); ++i)  // 14 of the 15 rows, sums of 6
        EXPECT_NEAR(each.values[0][i], one.values[0][i], 1e-5) << i;
    }
}

// The gradient of a residual is added in the norm's pass: in the bits of a sum of its own, which is left out.
TEST(Functions, NormsAddTheGradientOfTheirResidual) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  const auto trace = std::make_shared<Trace>();
  device->set_trace(trace);
  const Tensor x = random(*device, {5, 12}, 1), gain = random(*device, {12}, 2);
  for (const bool layer : {false, true})
    for (const float factor : {1.0f, 3.0f}) {  // at 1 the residual's gradient is also another's
      LooseParameters loose;
      const Parameter w = loose.add(gain);
      const auto sum = [&](Tape& tape, const Var& residual, const Var& normed) {
        // Backward goes the other way: the residual's gradient is there first.
        const Var norm = layer ? nn::layer_norm(normed, w) : nn::rms_norm(normed, w);
        const Var y = (factor == 1 ? residual : factor * residual) + norm;
        const Var loss = weighted(y);
        trace->set_enabled(true);
        tape.backward(loss);
        trace->set_enabled(false);
      };
      Tape tape;
      const Var a = tape.leaf(x), b = tape.leaf(x);
      sum(tape, a, b);
      const Tensor apart = Tensor::empty(*device, x.shape(), DType::f32, "test");
      ops::add(s, apart, tape.gradient(a), tape.gradient(b));
      const std::vector<float> want = ops::to_floats(s, apart);
      const Var both = tape.leaf(x);
      sum(tape, both, both);
      EXPECT_EQ(ops::to_floats(s, tape.gradient(both)), want);
    }
  for (const TraceRecord& r : trace->records()) EXPECT_NE(r.what, "add");
}

// The same check in double precision finds what is wrong by 1e-8 of a gradient.
TEST(Functions, HaveTheirDerivativeInF64) {
  auto device = make_cpu_device({.kernels = KernelSet::reference});
  const auto x = [&](Shape shape, uint64_t seed = 1) {
    const Tensor narrow = random(*device, std::move(shape), seed);
    Tensor wide = Tensor::empty(*device, narrow.shape(), DType::f64, "test");
    ops::cast(device->compute(), wide, narrow);
    return wide;
  };
  using F = std::function<Var(Tape&, const std::vector<Var>&)>;
  const std::vector<F> all = {
      [](Tape&, const auto& v) { return nn::mean(nn::swiglu(nn::gelu_erf(v[0]), v[1])); },
      [](Tape&, const auto& v) { return nn::sum(nn::softmax(v[0]) * nn::silu(v[1])); },
      [](Tape&, const auto& v) {  // the gradient given to the first sum's backward is not a constant
        const Var y = nn::sum(nn::multiply(v[0], v[1]));
        return nn::sum(y * y + nn::gelu(y));
      },
  };
  for (const F& f : all) {
    const nn::GradientError worst = nn::check_gradient(f, {x({3, 5}), x({3, 5}, 2)}, 1e-5);
    EXPECT_LT(worst.error, 1e-8) << worst.describe();
  }
  EXPECT_THROW(nn::check_gradient(all[0], {Tensor::empty(*device, {2}, DType::i32, "test")}),
               InvalidArgument);
}

// Only the reference kernels take f64.
TEST(Functions, InF64NeedTheReferenceKernels) {
  auto device = make_cpu_device();
  const Var x(Tensor::empty(*device, {2, 4}, DType::f64, "test"));
  EXPECT_THROW(nn::gelu(x), ShapeMismatch);
  EXPECT_THROW(nn::softmax(x), ShapeMismatch);
  EXPECT_THROW(nn::sum(x), ShapeMismatch);
  EXPECT_THROW(nn::causal_attention(nn::Var(Tensor::empty(*device, {2, 6}, DType::f64, "test")), 1, 1),
               ShapeMismatch);
}

TEST(Functions, RefuseWhatDoesNotFit) {
  auto device = make_cpu_device();
  const auto t = [&](Shape shape, DType dtype = DType::f32) {
    return Var(Tensor::empty(*device, std::move(shape), dtype, "test"));
  };
  EXPECT_THROW(nn::multiply(t({2, 3}), t({3, 2})), ShapeMismatch);
  EXPECT_THROW(nn::multiply(t({2, 3}), t({2, 3}, DType::bf16)), ShapeMismatch);
  EXPECT_THROW(nn::swiglu(t({2, 3}), t({2, 4})), ShapeMismatch);
  EXPECT_THROW(nn::swiglu(t({2, 3})), ShapeMismatch);
  EXPECT_THROW(nn::swiglu(t({4})), ShapeMismatch);
  EXPECT_THROW(nn::geglu(t({2, 3})), ShapeMismatch);
  EXPECT_THROW(nn::softmax(t({})), ShapeMismatch);
  EXPECT_THROW(nn::mean_squared_error(t({2, 3}), t({3, 2}).value()), ShapeMismatch);
  EXPECT_THROW(nn::mean_squared_error(t({4}, DType::bf16), t({4}, DType::bf16).value()), ShapeMismatch);
}

TEST(Functions, CrossEntropyTakesWhatBackwardBrings) {
  auto device = make_cpu_device();
  const Tensor targets = Tensor::empty(*device, {4}, DType::i32, "test");
  const std::vector<int32_t> wanted{2, 0, 5, 5};
  ops::copy_from_host(device->compute(), targets, wanted.data(), targets.nbytes());
  const Tensor logits = random(*device, {4, 6}, 5);
  expect_gradient([&](Tape&, const auto& v) { return nn::cross_entropy(v[0], targets, 0.25f).objective; },
                  {logits});
  expect_gradient([&](Tape&, const auto& v) { return 3 * nn::cross_entropy(v[0], targets, 0.25f).objective; },
                  {logits});
  expect_gradient(
      [&](Tape&, const auto& v) { return weighted(nn::cross_entropy(v[0], targets, 0.25f).objective); },
      {logits});
}

struct Weighted : nn::Module<Weighted> {
  Parameter w = param("weight", {6, 5}, normal(0.5f));
  Parameter bias = param("bias", {6}, normal(0.5f));
  Parameter back = param("back.weight", {5, 6}, normal(0.5f));
  Parameter gain = param("norm.weight", {5}, normal(0.5f));
  std::function<Var(Weighted&, const std::vector<Var>&)> f;
  Var forward(const std::vector<Var>& v) { return f(*this, v); }
};

std::string mismatch(const std::function<void()>& f) {
  return message_of<ShapeMismatch>([&] { f(); });
}

Var cube(const Var& x, const Parameter& w, const Tensor& back) {
  return nn::function(
      {x}, [&](Stream&) { return x.value(); },
      [x, back](Stream& s, const nn::BackwardCall&) -> std::vector<nn::Gradient> {
        if (x.shape().size() == 2) ops::add(s, x.value(), x.value(), back);
        return {back};
      },
      {w});
}

TEST(Functions, OfOtherShapesAreNamedWithTheirInputsAndParameters) {
  launch(1, [](RankContext& rank) {
    Weighted model;
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {});
    Tape tape;
    const auto t = [&](Shape shape) {
      return tape.leaf(Tensor::empty(*rank.device, std::move(shape), DType::f32, "test"));
    };
    const auto message = [&](Var x, const std::function<Var(Weighted&, const Var&)>& f) {
      model.f = [&](Weighted& m, const std::vector<Var>& v) { return f(m, v[0]); };
      const std::string text = mismatch([&] { model(std::vector<Var>{x}); });
      tape.clear();
      reset_step(model);
      return text;
    };
    const auto linear = [](Weighted& m, const Var& x) { return nn::linear(x, m.w, m.bias); };
    const auto names = [](const char* function, const char* input, const char* parameter) {
      return AllOf(StartsWith(function), HasSubstr(input), HasSubstr(parameter));
    };
    EXPECT_THAT(message(t({4, 7}), linear),
                names("linear of f32 [4, 7]", "parameter 'weight' [6, 5]", "'bias' [6]"));
    EXPECT_THAT(message(t({4}), linear),
                names("linear of f32 [4]", "must have 2 dimensions", "'weight' [6, 5]"));
    EXPECT_THAT(message(t({4, 7}), [](Weighted& m, const Var& x) { return nn::linear_gelu(x, m.w); }),
                names("linear_gelu of f32 [4, 7]", "gemm", "'weight' [6, 5]"));
    EXPECT_THAT(message(t({4, 7}), [](Weighted& m, const Var& x) { return nn::add_linear(x, x, m.back); }),
                names("add_linear of f32 [4, 7], f32 [4, 7]", "x is [4, 7]", "'back.weight' [5, 6]"));
    EXPECT_THAT(message(t({4, 7}), [](Weighted& m, const Var& x) { return nn::rms_norm(x, m.gain); }),
                names("rms_norm of f32 [4, 7]", "must", "'norm.weight' [5]"));
    EXPECT_THAT(message(t({4, 7}), [](Weighted& m, const Var& x) { return nn::embedding(x, m.w); }),
                names("embedding of f32 [4, 7]", "i32", "'weight' [6, 5]"));
    const Tensor wide = Tensor::empty(*rank.device, {9}, DType::f32, "test");
    EXPECT_THAT(mismatch([&] { tape.backward(nn::sum(cube(t({2}), model.w, wide))); }),
                StartsWith("the backward of cube returned a gradient f32 [9] for a value f32 [2]"));
    EXPECT_THAT(mismatch([&] {
                  tape.backward(nn::sum(cube(t({2, 3}), model.w, wide)));
                }),
                names("the backward of cube of parameter 'weight' [6, 5]: add", "[9]", "6 elements"));
  });
}

TEST(Functions, WithParametersHaveTheirDerivativeByTheInput) {
  launch(1, [](RankContext& rank) {
    const Tensor targets = Tensor::empty(*rank.device, {4}, DType::i32, "test");
    const std::vector<int32_t> wanted{2, 0, 4, 5};
    ops::copy_from_host(rank.device->compute(), targets, wanted.data(), targets.nbytes());
    using F = std::function<Var(Weighted&, const std::vector<Var>&)>;
    const std::vector<F> all = {
        [](Weighted& m, const auto& v) { return weighted(nn::linear(v[0], m.w)); },
        [](Weighted& m, const auto& v) { return weighted(nn::linear(v[0], m.w, m.bias)); },
        [](Weighted& m, const auto& v) { return weighted(nn::linear_gelu(v[0], m.w, m.bias)); },
        [](Weighted& m, const auto& v) {
          return weighted(nn::add_linear(v[0], nn::linear(v[0], m.w), m.back));
        },
        [](Weighted& m, const auto& v) { return weighted(nn::rms_norm(v[0], m.gain)); },
        [&](Weighted& m, const auto& v) {
          return nn::linear_cross_entropy(v[0], m.w, targets, 0.25f).objective;
        },
        [&](Weighted& m, const auto& v) {
          return 2 * nn::linear_cross_entropy(v[0], m.w, targets, 0.25f, 3).objective;
        },
    };
    Weighted model;
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard},
                {.allow_unused = true});
    ShardRuntime& runtime = runtime_of(model);
    runtime.set_last_microbatch(false);
    for (const F& f : all) {
      model.f = f;
      expect_gradient([&](Tape&, const auto& v) { return model(v); }, {random(*rank.device, {4, 5}, 9)});
    }
  });
}

// The gradient of a weight is that of its elements: moved by hand and put back.
TEST(Functions, WithParametersHaveTheirDerivativeByEachWeight) {
  launch(1, [](RankContext& rank) {
    Stream& s = rank.device->compute();
    const Tensor targets = Tensor::empty(*rank.device, {4}, DType::i32, "test");
    const std::vector<int32_t> wanted{2, 0, 4, 5};
    ops::copy_from_host(s, targets, wanted.data(), targets.nbytes());
    const Tensor in = random(*rank.device, {4, 5}, 9);
    for (const int64_t chunk : {0, 3}) {
      Weighted model;
      model.f = [&](Weighted& m, const std::vector<Var>& v) {
        const Var y = nn::rms_norm(nn::linear(nn::linear_gelu(v[0], m.w, m.bias), m.back), m.gain);
        return nn::linear_cross_entropy(y, m.w, targets, 0.25f, chunk).objective;
      };
      fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard});
      const auto objective = [&] {
        Tape tape;
        nn::NoGrad scope(tape);
        return static_cast<double>(ops::to_floats(s, model(std::vector<Var>{tape.input(in)}).value()).at(0));
      };
      Tape tape;
      tape.backward(model(std::vector<Var>{tape.input(in)}));
      for (Parameter p : model.own_parameters()) {
        const std::vector<float> gradient = ops::to_floats(s, p.grad_shard());
        std::vector<float> w = ops::to_floats(s, p.shard());
        double largest = 0;
        for (const float g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
        const auto at = [&](size_t i, float value) {
          const float before = w[i];
          w[i] = value;
          {
            WeightsChange change(runtime_of(model));
            ops::copy_from_host(s, p.shard(), w.data(), p.shard().nbytes());
            change.end();
          }
          const double y = objective();
          w[i] = before;
          return y;
        };
        for (size_t i = 0; i < w.size(); ++i) {
          const auto by = static_cast<float>(kStep);
          const double difference = (at(i, w[i] + by) - at(i, w[i] - by)) / (2 * kStep);
          EXPECT_NEAR(gradient[i], difference, kError * (std::abs(difference) + largest))
              << p.name() << " " << i;
        }
        WeightsChange change(runtime_of(model));
        ops::copy_from_host(s, p.shard(), w.data(), p.shard().nbytes());
        change.end();
      }
    }
  });
}

}  // namespace
}  // namespace sherd::test
