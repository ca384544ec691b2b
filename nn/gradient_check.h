// Check of gradients against finite differences.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sherd/nn/tape.h>

namespace sherd::nn {

/// Largest error found by check_gradient(): its place, and both values.
struct GradientError {
  double error = 0;  // |from backward - from differences| / (|from differences| + the largest of that input)
  size_t input = 0;
  int64_t element = 0;
  double backward = 0, differences = 0;
  std::string describe() const;
};

/// Compares the gradients that backward gives the inputs of f with central differences: (f(x + step e_i) -
/// f(x - step e_i)) / (2 step) for each element i of each input. f receives leaves of its tape and returns an
/// objective of one element; it must not depend on any other changing value. It needs two forwards for each
/// element; the host waits. The differences themselves err by about u |f| / step + step^2. u is 6e-8 in f32
/// (a step of 1e-2 leaves about 1e-4), and 1e-16 in f64 (a step of 1e-5 about 1e-10), which functions support
/// on a device with the reference kernels.
/// @param inputs f32 or f64, changed meanwhile and restored.
GradientError check_gradient(const std::function<Var(Tape&, const std::vector<Var>&)>& f,
                             std::vector<Tensor> inputs, double step = 1e-2);

}  // namespace sherd::nn
