// Routing in groups against transformers in f64 (tests/golden/routing.json; the README says how it is made).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/nn.h>

#include "golden_values.h"

namespace sherd::test {
namespace {

using Doubles = std::vector<double>;

Ref in_f64(Doubles& v) { return {v.data(), DType::f64}; }

/// A case of the file with its inputs.
struct GoldenRouting {
  explicit GoldenRouting(const nlohmann::json& c, int64_t all_rows)
      : rows(all_rows),
        experts(c["experts"]),
        k(c["k"]),
        choice{c["groups"], c["top_groups"], c["normalised"], c["scaling"]},
        logits(golden_values(rows * experts, 5)),
        weights(golden_values(rows * experts, 7)),
        gates(c["gates"].get<Doubles>()),
        gradient(c["gradient"].get<Doubles>()) {
    if (c["biased"].get<bool>())
      for (const float b : golden_values(experts, 3)) bias.push_back(b / 8);
  }
  /// The file's weight of each choice: what the gradient of the gates is.
  Doubles weights_of(const std::vector<int32_t>& indices) const {
    Doubles of_choices;
    for (size_t i = 0; i < indices.size(); ++i) of_choices.push_back(double{weights[place(indices, i)]});
    return of_choices;
  }
  /// Compares gates [rows, k] of these choices, of which no two of a row are alike, to `tolerance`, relative to 1 + the value.
  void expect_gates(const std::vector<int32_t>& indices, const Doubles& got, double tolerance) const {
    Doubles of_experts(gates.size(), 0.0);
    for (size_t i = 0; i < indices.size(); ++i) of_experts[place(indices, i)] = got[i];
    expect_values(of_experts, gates, tolerance, "gate");
  }
  void expect_gradient_near(const Doubles& got, double tolerance) const {
    expect_values(got, gradient, tolerance, "gradient");
  }

  int64_t rows, experts, k;
  ops::GroupChoice choice;
  std::vector<float> bias{}, logits, weights;
  Doubles gates, gradient;  // [rows, experts]; gates of experts that are not chosen are 0

 private:
  size_t place(const std::vector<int32_t>& indices, size_t i) const {
    return i / static_cast<size_t>(k) * static_cast<size_t>(experts) + static_cast<size_t>(indices[i]);
  }
  static void expect_values(const Doubles& got, const Doubles& want, double tolerance, const char* what) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LE(std::abs(got[i] - want[i]), tolerance * (1 + std::abs(want[i])))
          << what << " " << i << " is " << got[i] << ", not " << want[i];
  }
};

template <class F>
void for_each_golden_routing(F check) {
  const auto file = nlohmann::json::parse(std::ifstream(std::string(GOLDEN_FOLDER) + "/routing.json"));
  for (const auto& c : file["cases"]) {
    SCOPED_TRACE(c.dump().substr(0, 120));
    check(GoldenRouting(c, file["rows"]));
  }
}

// An exponential, a division, a sum of at most 4 scores, a product and a division: some 10 roundings of 2^-53, and as many of
// PyTorch's. A gradient has about 2x as many, and factors of up to 2.5 and 2.
TEST(GoldenRouting, TheReferenceAgreesWithTransformersInF64) {
  for_each_golden_routing([](const GoldenRouting& g) {
    std::vector<int32_t> indices(static_cast<size_t>(g.rows * g.k));
    Doubles logits(g.logits.begin(), g.logits.end()), gates(indices.size()), gradient(logits.size());
    GroupRouteArgs a{.rows = g.rows,
                     .experts = g.experts,
                     .k = g.k,
                     .groups = g.choice.groups,
                     .top_groups = g.choice.top_groups,
                     .normalised = g.choice.normalised,
                     .scaling = g.choice.scaling,
                     .logits = in_f64(logits),
                     .gates = in_f64(gates),
                     .indices = indices.data(),
                     .bias = g.bias.empty() ? nullptr : g.bias.data()};
    ExecutionContext context;
    ExpertsKernels::reference()->route_in_groups(context, a);
    g.expect_gates(indices, gates, 32 * 0x1p-53);
    Doubles of_gates = g.weights_of(indices);
    a.dgates = in_f64(of_gates), a.dlogits = in_f64(gradient);
    ExpertsKernels::reference()->route_in_groups_backward(context, a);
    g.expect_gradient_near(gradient, 128 * 0x1p-53);
  });
}

// The same in f32; exponentials err by 3e-7, about 5 * 2^-24.
TEST(GoldenRouting, CpuKernelsAgreeWithTransformersInF32) {
  for_each_golden_routing([](const GoldenRouting& g) {
    auto device = make_cpu_device();
    Stream& s = device->compute();
    const auto tensor = [&](Shape shape, const std::vector<float>& values) {
      Tensor t = Tensor::empty(*device, std::move(shape), DType::f32, "test");
      ops::copy_from_host(s, t, values.data(), t.nbytes());
      s.synchronize();
      return t;
    };
    nn::Tape tape;
    const nn::Var logits = tape.leaf(tensor({g.rows, g.experts}, g.logits));
    const nn::Routes routes =
        nn::route_in_groups(logits, {.k = g.k,
                                     .choice = g.choice,
                                     .bias = g.bias.empty() ? Tensor() : tensor({g.experts}, g.bias),
                                     .all_rows = g.rows});
    std::vector<int32_t> indices(static_cast<size_t>(g.rows * g.k));
    ops::copy_to_host(s, indices.data(), routes.indices);
    const std::vector<float> gates = ops::to_floats(s, routes.gates.value());
    g.expect_gates(indices, {gates.begin(), gates.end()}, 32 * 0x1p-24);
    const Doubles of_gates = g.weights_of(indices);
    tape.backward(routes.gates, tensor({g.rows, g.k}, {of_gates.begin(), of_gates.end()}));
    const std::vector<float> gradient = ops::to_floats(s, tape.gradient(logits));
    g.expect_gradient_near({gradient.begin(), gradient.end()}, 128 * 0x1p-24);
  });
}

}  // namespace
}  // namespace sherd::test
