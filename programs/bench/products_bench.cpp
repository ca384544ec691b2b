#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <sherd/kernels/ops.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/optim/role.h>

#include "device_bench.h"
#include "train_gpt/model/model_source.h"

namespace sherd_bench {
namespace {

using namespace sherd;

struct ProductsBench : DeviceBench {
  std::string model = "gpt2-124m";
  int64_t tokens = 1024;
};

/// Products of tokens with a matrix [out, in]: rows of each, and how many the model has.
struct ModelProduct {
  int64_t rows, out, in, count;
};

std::vector<ModelProduct> products_of(const ProductsBench& bench) {
  const nn::ModelDescription d = train_gpt::model_source(bench.model).config.description;
  const auto model = nn::causal_model(d);
  std::vector<RoleQuestion> questions;
  for (const auto& [name, p] : model->named_parameters())
    questions.push_back({.name = name, .shape = p.global_shape()});
  const std::vector<RoleGuess> roles = guess_roles(questions);
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> counts;
  for (size_t i = 0; i < roles.size(); ++i) {
    const Shape& s = questions[i].shape;
    const bool table = roles[i].role == Role::embedding && !(d.tied && s.size() == 2 && s[0] == d.vocab);
    if (s.size() < 2 || table) continue;
    const bool experts = s.size() == 3;
    const int64_t rows = experts ? std::max<int64_t>(1, bench.tokens * d.mixture.top_k / s[0]) : bench.tokens;
    counts[{rows, s[s.size() - 2], s.back()}] += experts ? s[0] : 1;
  }
  std::vector<ModelProduct> all;
  for (const auto& [sizes, count] : counts)
    all.push_back({std::get<0>(sizes), std::get<1>(sizes), std::get<2>(sizes), count});
  return all;
}

Tensor random_matrix(Device& device, Shape shape, DType dtype) {
  Stream& s = device.compute();
  const Tensor f = Tensor::empty(device, shape, DType::f32, "bench");
  ops::random_normal(s, f.flat(), 0, 1, "bench", 0, 1);
  if (dtype == DType::f32) return f;
  const Tensor t = Tensor::empty(device, std::move(shape), dtype, "bench");
  ops::cast(s, t, f);
  s.synchronize();  // f goes
  return t;
}

/// Forward, gradient of the input and gradient of the weights, which is fp32.
Row measure_products(Device& device, const ProductsBench& bench, const ModelProduct& p, DType dtype) {
  Stream& s = device.compute();
  const Tensor x = random_matrix(device, {p.rows, p.in}, dtype),
               w = random_matrix(device, {p.out, p.in}, dtype),
               dy = random_matrix(device, {p.rows, p.out}, dtype);
  const Tensor y = Tensor::empty(device, {p.rows, p.out}, dtype, "bench"),
               dx = Tensor::empty(device, {p.rows, p.in}, dtype, "bench"),
               dw = Tensor::empty(device, {p.out, p.in}, DType::f32, "bench");
  const Timing t = measure(device, {.rounds = bench.rounds, .batch_ms = bench.full() ? 20.0 : 5.0}, [&] {
    ops::gemm(s, y, x, false, w, true);
    ops::gemm(s, dx, dy, false, w, false);
    ops::gemm(s, dw, dy, true, x, false);
  });
  s.synchronize();
  return {fmt::format("{} of {}", p.count, name_of(dtype)),
          fmt::format("{} x {} x {}", p.rows, p.in, p.out),
          t,
          0,
          6.0 * static_cast<double>(p.rows * p.out * p.in),
          0};
}

/// Prints a table: each shape's products beside a square one, and the tokens per second of all of them.
void run_products(const ProductsBench& bench) {
  const auto device = make_device(bench);
  const std::vector<ModelProduct> products = products_of(bench);
  std::vector<Row> rows;
  std::string sums;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    rows.push_back(measure_gemm(*device, bench, dtype));
    const double ceiling = rows.back().tflop_per_s();
    double seconds = 0, flops = 0;
    for (const ModelProduct& p : products) {
      Row r = measure_products(*device, bench, p, dtype);
      r.of_ceiling = r.tflop_per_s() / ceiling;
      seconds += static_cast<double>(p.count) * r.timing.median;
      flops += static_cast<double>(p.count) * r.flops;
      rows.push_back(std::move(r));
    }
    sums += fmt::format("{}: {:.0f} tokens/s by products alone, {:.3f} TFLOP/s\n", name_of(dtype),
                        static_cast<double>(bench.tokens) / seconds, flops / seconds * 1e-12);
  }
  fmt::print(
      "{}: products of {} with {} tokens, forward and backward (rows x in x out), beside a square one\n{}{}",
      title_of(bench), bench.model, bench.tokens, format_rows(rows), sums);
  if (!bench.json.empty()) write_rows(bench.json, "products", title_of(bench), rows);
}

}  // namespace

Command products_command(CLI::App& program) {
  const auto b = std::make_shared<ProductsBench>();
  CLI::App* app =
      program.add_subcommand("products", "a model's own matrix products: what its training cannot exceed");
  add_device_options(*app, *b);
  app->add_option("--model", b->model, "preset, or folder of a Hugging Face model")->capture_default_str();
  app->add_option("--tokens", b->tokens, "rows of activations")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  return {app, [b] { return run_products(*b), true; }};
}

}  // namespace sherd_bench
