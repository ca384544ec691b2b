#include <sherd/nn/gradient_check.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/copy/copy.h>

namespace sherd::nn {
namespace {

template <class T>
std::vector<double> read_as(const Tensor& t) {
  std::vector<T> values(static_cast<size_t>(t.numel()));
  ops::copy_to_host(t.device().compute(), values.data(), t);
  return {values.begin(), values.end()};
}

std::vector<double> read(const Tensor& t) {
  return t.dtype() == DType::f64 ? read_as<double>(t) : read_as<float>(t);
}

template <class T>
void write_as(const Tensor& t, const std::vector<double>& values) {
  std::vector<T> as(values.size());
  std::transform(values.begin(), values.end(), as.begin(), [](double v) { return static_cast<T>(v); });
  ops::copy_from_host(t.device().compute(), t, as.data(), t.nbytes());
}

void write(const Tensor& t, const std::vector<double>& values) {
  t.dtype() == DType::f64 ? write_as<double>(t, values) : write_as<float>(t, values);
}

// Returns the value as the input's dtype stores it: the step is the difference of two such values.
double held(const Tensor& t, double value) {
  return t.dtype() == DType::f64 ? value : static_cast<float>(value);
}

}  // namespace

std::string GradientError::describe() const {
  return fmt::format("input {}, element {}: {} by backward, {} by differences (error {:.2g})", input, element,
                     backward, differences, error);
}

GradientError check_gradient(const std::function<Var(Tape&, const std::vector<Var>&)>& f,
                             std::vector<Tensor> inputs, double step) {
  for (const Tensor& x : inputs)
    if (x.dtype() != DType::f32 && x.dtype() != DType::f64)
      throw InvalidArgument(
          fmt::format("check_gradient: an input is {}, must be f32 or f64", name_of(x.dtype())));
  Tape tape;
  std::vector<Var> leaves;
  for (const Tensor& x : inputs) leaves.push_back(tape.leaf(x));
  tape.backward(f(tape, leaves));
  std::vector<std::vector<double>> gradients;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor g = tape.gradient(leaves[i]);
    gradients.push_back(g.defined() ? read(g)
                                    : std::vector<double>(static_cast<size_t>(inputs[i].numel()), 0.0));
  }
  const auto value = [&] {
    Tape forward;
    NoGrad scope(forward);
    std::vector<Var> constants;
    for (const Tensor& x : inputs) constants.push_back(forward.input(x));
    return read(f(forward, constants).value()).at(0);
  };
  GradientError worst;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::vector<double> x = read(inputs[i]);
    std::vector<double> differences(x.size());
    for (size_t k = 0; k < x.size(); ++k) {
      const double up = held(inputs[i], x[k] + step), down = held(inputs[i], x[k] - step);
      std::vector<double> moved = x;
      moved[k] = up;
      write(inputs[i], moved);
      const double above = value();
      moved[k] = down;
      write(inputs[i], moved);
      differences[k] = (above - value()) / (up - down);
    }
    write(inputs[i], x);
    double largest = 0;
    for (const double d : differences) largest = std::max(largest, std::abs(d));
    for (size_t k = 0; k < x.size(); ++k) {
      const double error =
          std::abs(gradients[i][k] - differences[k]) / std::max(std::abs(differences[k]) + largest, 1e-30);
      if (error > worst.error || !std::isfinite(error))
        worst = {error, i, static_cast<int64_t>(k), gradients[i][k], differences[k]};
    }
  }
  return worst;
}

}  // namespace sherd::nn
