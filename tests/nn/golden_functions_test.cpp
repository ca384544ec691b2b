// Every function against PyTorch (tests/golden/functions.json, algebra.json and latent.json; the README says how they are made), and its
// gradients against differences of its own value in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/nn.h>

#include "golden_cases.h"
#include "loose_parameters.h"

namespace sherd::test {
namespace {

using nn::Var;
using Doubles = std::vector<double>;

Var of_rising_target(const Var& x) {
  Tensor target = Tensor::empty(x.device(), x.shape(), x.dtype(), "test");
  for (int64_t i = 0; i < x.numel(); ++i)
    ops::fill(x.stream(), target.flat(i, i + 1), static_cast<double>(i) / 4);
  return nn::mean_squared_error(x, target);
}

Var second_call(const Var& x) {
  nn::RandomState random(7);
  random.begin(3, (int64_t{1} << 32) - 2);  // rows on both sides of 2^32
  random.next("blocks.0.mlp");
  return nn::dropout(x, 0.25f, random, "blocks.0.mlp");
}

const GoldenTable& plain_functions() {
  using A = const GoldenArguments&;
  using Vars = std::vector<Var>;
  static const GoldenTable all = {
      {"linear", [](A a) -> Vars { return {nn::linear(a.x[0], a.w[0])}; }},
      {"linear_bias", [](A a) -> Vars { return {nn::linear(a.x[0], a.w[0], a.w[1])}; }},
      {"linear_gelu", [](A a) -> Vars { return {nn::linear_gelu(a.x[0], a.w[0])}; }},
      {"linear_gelu_bias", [](A a) -> Vars { return {nn::linear_gelu(a.x[0], a.w[0], a.w[1])}; }},
      {"add_linear", [](A a) -> Vars { return {nn::add_linear(a.x[0], a.x[1], a.w[0])}; }},
      {"gelu_mlp", [](A a) -> Vars { return {nn::gelu_mlp(a.x[0], a.w[0], a.w[1])}; }},
      {"gelu_mlp_residual", [](A a) -> Vars { return {nn::gelu_mlp(a.x[0], a.w[0], a.w[1], a.x[1])}; }},
      {"rms_norm", [](A a) -> Vars { return {nn::rms_norm(a.x[0], a.w[0])}; }},
      {"layer_norm", [](A a) -> Vars { return {nn::layer_norm(a.x[0], a.w[0])}; }},
      {"layer_norm_bias", [](A a) -> Vars { return {nn::layer_norm(a.x[0], a.w[0], a.w[1])}; }},
      {"causal_attention", [](A a) -> Vars { return {nn::causal_attention(a.x[0], 2, 3)}; }},
      {"embedding", [](A a) -> Vars { return {nn::embedding(a.x[0], a.w[0])}; }},
      {"embedding_positions", [](A a) -> Vars { return {nn::embedding(a.x[0], a.w[0], a.w[1])}; }},
      {"gelu", [](A a) -> Vars { return {nn::gelu(a.x[0])}; }},
      {"gelu_erf", [](A a) -> Vars { return {nn::gelu_erf(a.x[0])}; }},
      {"silu", [](A a) -> Vars { return {nn::silu(a.x[0])}; }},
      {"relu", [](A a) -> Vars { return {nn::relu(a.x[0])}; }},
      {"swiglu", [](A a) -> Vars { return {nn::swiglu(a.x[0], a.x[1])}; }},
      {"swiglu_packed", [](A a) -> Vars { return {nn::swiglu(a.x[0])}; }},
      {"softmax", [](A a) -> Vars { return {nn::softmax(a.x[0])}; }},
      {"add", [](A a) -> Vars { return {a.x[0] + a.x[1]}; }},
      {"multiply", [](A a) -> Vars { return {a.x[0] * a.x[1]}; }},
      {"multiply_itself", [](A a) -> Vars { return {a.x[0] * a.x[0]}; }},
      {"scale", [](A a) -> Vars { return {-1.5f * a.x[0]}; }},
      {"view",
       [](A a) -> Vars {
         return {nn::view(a.x[0], {3, 5})};
       }},
      {"sum", [](A a) -> Vars { return {nn::sum(a.x[0])}; }},
      {"mean", [](A a) -> Vars { return {nn::mean(a.x[0])}; }},
      {"mean_squared_error", [](A a) -> Vars { return {of_rising_target(a.x[0])}; }},
      {"cross_entropy", [](A a) -> Vars { return {nn::cross_entropy(a.x[0], a.n[0], 0.25f).objective}; }},
      {"linear_cross_entropy",
       [](A a) -> Vars { return {nn::linear_cross_entropy(a.x[0], a.w[0], a.n[0], 0.25f).objective}; }},
      {"linear_cross_entropy_chunks",
       [](A a) -> Vars { return {nn::linear_cross_entropy(a.x[0], a.w[0], a.n[0], 0.25f, 2).objective}; }},
      {"dropout", [](A a) -> Vars { return {second_call(a.x[0])}; }},
      {"concat_rows", [](A a) -> Vars { return {nn::concat_rows(a.x)}; }},
      {"rows", [](A a) -> Vars { return {nn::rows(a.x[0], 1, 3)}; }},
      {"split_columns",
       [](A a) -> Vars {
         return nn::split_columns(a.x[0], {2, 1, 4});
       }},
  };
  return all;
}

const GoldenTable& all_functions() {
  static const GoldenTable all = [] {
    GoldenTable joined = plain_functions();
    joined.insert(algebra_functions().begin(), algebra_functions().end());
    joined.insert(latent_functions().begin(), latent_functions().end());
    return joined;
  }();
  return all;
}

const nlohmann::json& golden_cases() {
  static const nlohmann::json cases = [] {
    nlohmann::json all;
    for (const char* name : {"/functions.json", "/algebra.json", "/latent.json"})
      all.update(nlohmann::json::parse(std::ifstream(std::string(GOLDEN_FOLDER) + name))["cases"]);
    return all;
  }();
  return cases;
}

void write(const Tensor& t, const Doubles& values) {
  Stream& s = t.device().compute();
  const std::vector<float> floats(values.begin(), values.end());
  const std::vector<int32_t> ints(values.begin(), values.end());
  const void* from = values.data();
  if (t.dtype() == DType::f32) from = floats.data();
  if (t.dtype() == DType::i32) from = ints.data();
  ops::copy_from_host(s, t, from, t.nbytes());
}

Doubles read(const Tensor& t) {
  Stream& s = t.device().compute();
  if (t.dtype() == DType::f32) {
    const std::vector<float> floats = ops::to_floats(s, t);
    return {floats.begin(), floats.end()};
  }
  Doubles values(static_cast<size_t>(t.numel()));
  ops::copy_to_host(s, values.data(), t);
  return values;
}

/// One function with its golden case, on a device.
class Case {
 public:
  Case(const std::string& name, DType dtype)
      : device_(make_cpu_device({.kernels = dtype == DType::f64 ? KernelSet::reference : KernelSet::cpu})),
        f_(all_functions().at(name)),
        file_(golden_cases()[name]) {
    for (auto& t : file_["inputs"]) inputs_.push_back(tensor(t, dtype));
    for (auto& t : file_["parameters"]) weights_.push_back(tensor(t, dtype));
    for (auto& t : file_["integers"]) arguments_.n.push_back(tensor(t, DType::i32));
    for (auto& t : file_["output_gradients"]) seeds_.push_back(tensor(t, dtype));
    for (const Tensor& w : weights_) arguments_.w.push_back(parameters_.add(w));
  }

  Doubles want(const char* list, size_t i) const { return file_[list][i]["values"].get<Doubles>(); }
  size_t tensors() const { return inputs_.size() + weights_.size(); }
  /// Input i, or parameter i - the number of inputs.
  const Tensor& operator[](size_t i) const {
    return i < inputs_.size() ? inputs_[i] : weights_[i - inputs_.size()];
  }

  std::vector<Doubles> outputs() {
    nn::Tape tape;
    std::vector<Doubles> values;
    for (const Var& y : run(tape)) values.push_back(read(y.value()));
    return values;
  }
  /// Returns the gradients of all inputs and parameters, for the output gradients of the file.
  std::vector<Doubles> gradients() {
    nn::Tape tape;
    const std::vector<Var> y = run(tape);
    if (y.size() == 1) {
      tape.backward(y[0], seeds_[0]);
    } else {
      Var objective = nn::sum(y[0] * Var(seeds_[0]));
      for (size_t i = 1; i < y.size(); ++i) objective = objective + nn::sum(y[i] * Var(seeds_[i]));
      tape.backward(objective);
    }
    std::vector<Doubles> values;
    for (size_t i = 0; i < inputs_.size(); ++i) values.push_back(read(tape.gradient(arguments_.x[i])));
    for (size_t i = 0; i < weights_.size(); ++i)
      values.push_back(read(parameters_.grad(static_cast<int>(i))));
    return values;
  }
  /// The sum of the outputs times their gradients of the file: what gradients() is the derivative of.
  double objective() {
    double sum = 0;
    const std::vector<Doubles> y = outputs();
    for (size_t i = 0; i < y.size(); ++i) {
      const Doubles seed = want("output_gradients", i);
      for (size_t k = 0; k < seed.size(); ++k) sum += y[i][k] * seed[k];
    }
    return sum;
  }

 private:
  Tensor tensor(const nlohmann::json& stored, DType dtype) {
    Tensor t = Tensor::empty(*device_, stored["shape"].get<Shape>(), dtype, "test");
    write(t, stored["values"].get<Doubles>());
    return t;
  }
  std::vector<Var> run(nn::Tape& tape) {
    arguments_.x.clear();
    parameters_.record_on(&tape);
    for (const Tensor& x : inputs_) arguments_.x.push_back(tape.leaf(x));
    if (inputs_.empty()) arguments_.x.push_back(tape.input(arguments_.n.at(0)));  // tokens
    return f_(arguments_);
  }

  std::shared_ptr<Device> device_;
  GoldenFunction f_;
  const nlohmann::json& file_;
  LooseParameters parameters_;
  std::vector<Tensor> inputs_, weights_, seeds_;
  GoldenArguments arguments_;
};

double largest(const Doubles& v) {
  double most = 0;
  for (const double x : v) most = std::max(most, std::abs(x));
  return most;
}

/// |got - want| <= tolerance * (1 + the largest |want|) for every element.
void expect_near(const Doubles& got, const Doubles& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const double bound = tolerance * (1 + largest(want));
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LE(std::abs(got[i] - want[i]), bound)
        << what << ", element " << i << ": " << got[i] << ", not " << want[i];
}

class GoldenFunctions : public ::testing::TestWithParam<std::string> {};

/// Bounds relative to 1 + the largest value of a tensor.
struct GoldenBounds {
  // Sums have at most 24 addends, one after another through two products at most, and each addition and
  // multiplication errs by 2^-24 of a partial sum; exponentials err by 3e-7, about 5 * 2^-24.
  double f32 = 48 * 0x1p-24;
  // The same in f64, and PyTorch's own roundings.
  double forward = 96 * 0x1p-53, backward = forward;
  double differences = 1e-9;
};

GoldenBounds bounds_of(const std::string& name) {
  // Attention keeps its log-sum-exp in f32 whatever its inputs are: of size near 2, to 2^-24 of it, and
  // probabilities err by as much, relatively.
  if (name == "causal_attention") return {.backward = 2 * 0x1p-23, .differences = 2 * 0x1p-23};
  // Five products one after another, of 15 addends at most. Factors of queries and of rotations are f32: scores up to 4 err
  // by 2^-24 of them, and values near 1 by as much as probabilities do.
  if (latent_functions().contains(name))
    return {
        .f32 = 128 * 0x1p-24, .forward = 4 * 0x1p-24, .backward = 16 * 0x1p-24, .differences = 4 * 0x1p-23};
  return {};
}

void expect_golden(const std::string& name, DType dtype, double forward, double backward) {
  Case c(name, dtype);
  const std::vector<Doubles> y = c.outputs(), gradients = c.gradients();
  for (size_t i = 0; i < y.size(); ++i)
    expect_near(y[i], c.want("outputs", i), forward, name + ": output " + std::to_string(i));
  for (size_t i = 0; i < c.tensors(); ++i)
    expect_near(gradients[i], c.want("gradients", i), backward, name + ": gradient " + std::to_string(i));
}

TEST_P(GoldenFunctions, AgreesWithPyTorchInF32) {
  const GoldenBounds bounds = bounds_of(GetParam());
  expect_golden(GetParam(), DType::f32, bounds.f32, bounds.f32);
}

TEST_P(GoldenFunctions, AgreesWithPyTorchInF64) {
  const GoldenBounds bounds = bounds_of(GetParam());
  expect_golden(GetParam(), DType::f64, bounds.forward, bounds.backward);
}

// A step of 1e-5: values near 10 err by 1e-15 and so their differences by 1e-10; third derivatives near 10
// add 2e-10.
TEST_P(GoldenFunctions, GradientsAreThoseOfDifferencesInF64) {
  const double step = 1e-5, tolerance = bounds_of(GetParam()).differences;
  Case c(GetParam(), DType::f64);
  const std::vector<Doubles> gradients = c.gradients();
  for (size_t i = 0; i < c.tensors(); ++i) {
    const Doubles x = read(c[i]);
    Doubles differences(x.size());
    for (size_t k = 0; k < x.size(); ++k) {
      const auto at = [&](double value) {
        Doubles moved = x;
        moved[k] = value;
        write(c[i], moved);
        return c.objective();
      };
      differences[k] = (at(x[k] + step) - at(x[k] - step)) / ((x[k] + step) - (x[k] - step));
    }
    write(c[i], x);
    expect_near(gradients[i], differences, tolerance, "tensor " + std::to_string(i));
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (auto& [name, f] : all_functions()) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenFunctions, ::testing::ValuesIn(names()),
                         [](const auto& p) { return p.param; });

TEST(GoldenFunctionsFile, HasACaseForEachFunction) {
  std::vector<std::string> cases;
  for (auto& [name, c] : golden_cases().items()) cases.push_back(name);
  EXPECT_EQ(cases, names());  // both sorted
}

}  // namespace
}  // namespace sherd::test
