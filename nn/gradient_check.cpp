#include <sherd/nn/gradient_check.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <sherd/kernels/ops/copy.h>

namespace sherd::nn {
namespace {

std::vector<float> read(const Tensor& t) { return ops::to_floats(t.device().compute(), t); }

void write(const Tensor& t, const std::vector<float>& values) {
  ops::copy_from_host(t.device().compute(), t, values.data(), t.nbytes());
}

}  // namespace

std::string GradientError::describe() const {
  return fmt::format("input {}, element {}: {} by backward, {} by differences (error {:.2g})", input, element, backward,
                     differences, error);
}

GradientError check_gradient(const std::function<Var(Tape&, const std::vector<Var>&)>& f, std::vector<Tensor> inputs,
                             double step) {
  Tape tape;
  std::vector<Var> leaves;
  for (const Tensor& x : inputs) leaves.push_back(tape.leaf(x));
  tape.backward(f(tape, leaves));
  std::vector<std::vector<float>> gradients;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor g = tape.gradient(leaves[i]);
    gradients.push_back(g.defined() ? read(g) : std::vector<float>(static_cast<size_t>(inputs[i].numel()), 0.0f));
  }
  const auto value = [&] {
    Tape forward;
    NoGrad scope(forward);
    std::vector<Var> constants;
    for (const Tensor& x : inputs) constants.push_back(forward.input(x));
    return static_cast<double>(read(f(forward, constants).value()).at(0));
  };
  GradientError worst;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::vector<float> x = read(inputs[i]);
    std::vector<double> differences(x.size());
    for (size_t k = 0; k < x.size(); ++k) {
      std::vector<float> moved = x;
      const auto by = static_cast<float>(step);
      moved[k] = x[k] + by;
      write(inputs[i], moved);
      const double above = value();
      moved[k] = x[k] - by;
      write(inputs[i], moved);
      const double below = value();
      differences[k] = (above - below) / (static_cast<double>(x[k] + by) - static_cast<double>(x[k] - by));
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
