#include "golden_cases.h"

namespace sherd::test {
namespace {

using nn::Var;
using Values = std::vector<Var>;

constexpr double kEven = 1.0 / 64;  // as in make_algebra.py

/// A case of one output.
GoldenFunction of(std::function<Var(const Values&)> f) {
  return [f = std::move(f)](const GoldenArguments& a) -> Values { return {f(a.x)}; };
}

Var powers(const Var& x) {
  const Var a = nn::abs(x) + 1.0;
  return nn::power(x, 2.0) + nn::power(a, 0.5) + nn::power(x, 3.0) + nn::power(a, -1.5) + nn::power(2.0, x);
}

GoldenTable arithmetic() {
  using A = const Values&;
  return {
      {"add_broadcast", of([](A x) { return x[0] + x[1]; })},
      {"subtract_broadcast", of([](A x) { return x[0] - x[1]; })},
      {"multiply_broadcast", of([](A x) { return x[0] * x[1]; })},
      {"divide_broadcast", of([](A x) { return x[0] / (nn::abs(x[1]) + 0.5); })},
      {"numbers", of([](A x) { return 1.5 - x[0] / 0.75 + 2 / (nn::abs(x[0]) + 1) - -x[0] * 3.0f; })},
      {"power", of([](A x) { return nn::power(nn::abs(x[0]) + 1, x[1]); })},
      {"power_of_numbers", of([](A x) { return powers(x[0]); })},
      {"maximum", of([](A x) { return nn::maximum(x[0], x[1] + kEven); })},
      {"minimum", of([](A x) { return nn::minimum(x[0], x[1] + kEven); })},
      {"where_less", of([](A x) { return nn::where(nn::less(x[0], x[1] + kEven), x[0] * x[1], x[1]); })},
      {"where_less_equal", of([](A x) {
         return nn::where(nn::less_equal(x[0], 0.25), x[0], x[1]) + nn::equal(x[0], x[0]) * x[1];
       })},
      {"exp", of([](A x) { return nn::exp(x[0]); })},
      {"log", of([](A x) { return nn::log(nn::abs(x[0]) + 0.5); })},
      {"sqrt", of([](A x) { return nn::sqrt(nn::abs(x[0]) + 0.5); })},
      {"tanh", of([](A x) { return nn::tanh(x[0]); })},
      {"sigmoid", of([](A x) { return nn::sigmoid(x[0]); })},
      {"abs", of([](A x) { return nn::abs(x[0]); })},
      {"softplus", of([](A x) { return nn::softplus(x[0]); })},
      {"leaky_relu", of([](A x) { return nn::leaky_relu(x[0], 0.2); })},
      {"elu", of([](A x) { return nn::elu(x[0]); })},
      {"quick_gelu", of([](A x) { return nn::quick_gelu(x[0]); })},
      {"geglu", of([](A x) { return nn::geglu(x[0]); })},
      {"clamped_swiglu", of([](A x) { return nn::clamped_swiglu(x[0], x[1], 0.7); })},
      {"log_softmax", of([](A x) { return nn::log_softmax(x[0], 0); })},
      {"smooth_l1", of([](A x) { return nn::smooth_l1(x[0], x[1] + kEven, 0.5); })},
      {"binary_cross_entropy", of([](A x) { return nn::binary_cross_entropy(x[0], nn::sigmoid(x[1])); })},
      {"kl_divergence", of([](A x) { return nn::kl_divergence(nn::log_softmax(x[0]), nn::softmax(x[1])); })},
      {"parameter_values",
       [](const GoldenArguments& a) -> Values {
         return {nn::tanh(a.x[0] * a.w[0] + a.w[1]) * a.w[0] - a.w[1]};
       }},
  };
}

GoldenTable shapes() {
  using A = const Values&;
  return {
      {"sum_dims", of([](A x) {
         return nn::sum(x[0], {0, 2});
       })},
      {"sum_all_dims", of([](A x) {
         return nn::sum(x[0], {0, 1});
       })},
      {"mean_dims", of([](A x) {
         return nn::mean(x[0], {1, 2}, true);
       })},
      {"max_dims", of([](A x) {
         return nn::max(x[0], {0, -1});
       })},
      {"logsumexp", of([](A x) {
         return nn::logsumexp(x[0], {0, 2}, true);
       })},
      {"variance", of([](A x) { return nn::variance(x[0], {1}); })},
      {"reshape", of([](A x) {
         return nn::reshape(x[0], {3, -1, 2});
       })},
      {"permute", of([](A x) {
         return nn::permute(x[0], {2, 0, 1});
       })},
      {"transpose", of([](A x) { return nn::transpose(x[0]); })},
      {"broadcast_to", of([](A x) {
         return nn::broadcast_to(x[0], {2, 3, 4});
       })},
      {"slice", of([](A x) { return nn::slice(x[0], 1, 1, 6, 2); })},
      {"concat", of([](A x) { return nn::concat(x, -1); })},
      {"stack", of([](A x) { return nn::stack(x, 1); })},
      {"index_select",
       [](const GoldenArguments& a) -> Values { return {nn::index_select(a.x[0], 0, a.n[0])}; }},
      {"index_select_columns",
       [](const GoldenArguments& a) -> Values { return {nn::index_select(a.x[0], 1, a.n[0])}; }},
      {"matmul", of([](A x) { return nn::matmul(x[0], x[1]); })},
      {"matmul_one_right", of([](A x) { return nn::matmul(x[0], x[1], {.transpose_b = true}); })},
      {"matmul_batches", of([](A x) { return nn::matmul(x[0], x[1]); })},
      {"matmul_transposed",
       of([](A x) { return nn::matmul(x[0], x[1], {.transpose_a = true, .transpose_b = true}); })},
      {"matmul_one_left", of([](A x) { return nn::matmul(x[0], x[1], {.transpose_a = true}); })},
  };
}

/// A constant in x's dtype.
Tensor constant(const Var& x, const Shape& shape, const std::vector<double>& values) {
  const Tensor t = Tensor::empty(x.device(), shape, x.dtype(), "test");
  const std::vector<float> narrow(values.begin(), values.end());
  ops::copy_from_host(x.stream(), t,
                      x.dtype() == DType::f64 ? static_cast<const void*>(values.data()) : narrow.data(),
                      t.nbytes());
  return t;
}

GoldenTable objectives() {
  const auto stacked = [](const Var& logits, const Tensor& targets) {
    return nn::stack({nn::token_losses(logits, targets), nn::z_loss(logits)}, 1);
  };
  return {
      {"token_losses", [](const GoldenArguments& a) -> Values { return {nn::token_losses(a.x[0], a.n[0])}; }},
      {"log_probs", [](const GoldenArguments& a) -> Values { return {nn::log_probs(a.x[0], a.n[0])}; }},
      {"weighted_cross_entropy",
       [](const GoldenArguments& a) -> Values {
         return {nn::cross_entropy(a.x[0], a.n[0], constant(a.x[0], {5}, {0.5, 2, 3, 0.25, 1})).objective};
       }},
      {"entropy", of([](const Values& x) { return nn::entropy(x[0]); })},
      {"z_loss", of([](const Values& x) { return nn::z_loss(x[0]); })},
      {"divergence", of([](const Values& x) {
         std::vector<double> reference(35);
         for (size_t i = 0; i < 35; ++i) reference[i] = static_cast<double>(i) / 16;
         return nn::divergence(x[0], constant(x[0], {5, 7}, reference));
       })},
      {"of_logits",
       [stacked](const GoldenArguments& a) -> Values {
         return {nn::of_logits(
             {.vocab = 7}, a.x[0], a.w[0],
             [&, targets = a.n[0]](const Var& logits, int64_t begin, int64_t end) {
               return stacked(logits, targets.flat(begin, end));
             },
             5, 2)};
       }},
  };
}

GoldenTable layers() {
  using A = const Values&;
  return {
      {"windows", of([](A x) {
         return nn::windows(x[0], {2, 3});
       })},
      {"conv2d", of([](A x) {
         return nn::conv2d(x[0], x[1], x[2], {.stride = {2, 1}, .padding = {1, 0}});
       })},
      {"conv1d", of([](A x) { return nn::conv1d(x[0], x[1], {}, 2, 1); })},
      {"average_pool2d", of([](A x) {
         return nn::average_pool2d(x[0], {2, 3}, {.stride = {2, 1}, .padding = {1, 0}});
       })},
      {"max_pool2d", of([](A x) {
         return nn::max_pool2d(x[0], {2, 2}, {2, 1});
       })},
      {"batch_norm", of([](A x) { return nn::batch_norm(x[0], x[1], x[2]); })},
      {"group_norm", of([](A x) { return nn::group_norm(x[0], 2, x[1], x[2]); })},
      {"dot_product_attention", of([](A x) {
         return nn::dot_product_attention(x[0], x[1], x[2], {.batch = 2, .heads = 2, .mask = x[3]});
       })},
  };
}

}  // namespace

const GoldenTable& algebra_functions() {
  static const GoldenTable all = [] {
    GoldenTable both = arithmetic();
    both.merge(shapes());
    both.merge(objectives());
    both.merge(layers());
    return both;
  }();
  return all;
}

}  // namespace sherd::test
