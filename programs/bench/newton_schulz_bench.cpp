#include <fmt/format.h>
#include <memory>

#include <string>
#include <vector>

#include <sherd/kernels/ops.h>

#include "device_bench.h"

namespace sherd_bench {
namespace {

using namespace sherd;

struct MatrixShape {
  int64_t batch, rows, cols;
};

// Squares and a transformer's shapes alone, and as many of one shape as its layers are: what a step of Muon
// has. PyTorch's side (torch_muon.py) has the same list.
std::vector<MatrixShape> shapes_of(const DeviceBench& b) {
  if (b.full())
    return {{1, 1024, 1024}, {1, 2048, 2048},  {1, 4096, 4096},  {1, 8192, 8192},
            {1, 2048, 7168}, {1, 4096, 11008}, {32, 1024, 1024}, {16, 2048, 2048},
            {4, 4096, 4096}, {32, 1024, 4096}, {8, 2048, 7168}};
  return {{1, 128, 128}, {1, 256, 256}, {1, 128, 448}, {1, 256, 688},
          {8, 64, 64},   {4, 128, 128}, {8, 64, 256}};
}

DType working_of(const DeviceBench& b) {
  const std::string word = b.working.empty() ? (b.device == "cuda" ? "fp16" : "fp32") : b.working;
  return word == "fp16" ? DType::f16 : word == "bf16" ? DType::bf16 : DType::f32;
}

/// Returns the FLOPs of five steps, with symmetric products at half: 15a + 5, and 14 + 6a with one restart or
/// 17 + 3a without, in n^3; n is the short side and a n the long one.
double operations(const MatrixShape& m, IterationForm form, bool restart) {
  const auto n = static_cast<double>(std::min(m.rows, m.cols));
  const double a = static_cast<double>(std::max(m.rows, m.cols)) / n;
  const double factor = form == IterationForm::standard ? 15 * a + 5 : restart ? 14 + 6 * a : 17 + 3 * a;
  return static_cast<double>(m.batch) * factor * n * n * n;
}

/// Prints a table: five of Jordan's steps on the shapes of transformers' matrices, alone and in batches, in both forms.
void run_newton_schulz(const DeviceBench& bench) {
  const auto device = make_device(bench);
  Stream& s = device->compute();
  const DType working = working_of(bench);
  const DType product = working == DType::f32 ? DType::f32 : DType::bf16;  // 16-bit types are equally fast
  std::vector<Row> rows{measure_gemm(*device, bench, product)};
  const double ceiling = rows[0].tflop_per_s();
  for (const MatrixShape& m : shapes_of(bench)) {
    const Shape shape = {m.batch, m.rows, m.cols};
    const Tensor in = Tensor::empty(*device, shape, DType::f32, "bench");
    const Tensor out = Tensor::empty(*device, shape, DType::f32, "bench");
    const Tensor status = Tensor::empty(*device, {m.batch}, DType::i32, "bench");
    ops::random_normal(s, in.flat(), 0, 1, "bench", 0, 1);
    for (const IterationForm form : {IterationForm::standard, IterationForm::gram}) {
      if (form == IterationForm::gram && working == DType::bf16) continue;  // refused: unsafe
      OrthogonalizeOptions o{.form = form, .working = working};
      if (form == IterationForm::gram && working == DType::f16) o.restarts = {2};
      Row r{form == IterationForm::gram ? "gram" : "standard",
            fmt::format("{} x {} x {} {}", m.batch, m.rows, m.cols, name_of(working)),
            measure(*device, {.rounds = bench.rounds, .batch_ms = bench.full() ? 20.0 : 5.0},
                    [&] { ops::orthogonalize(s, out, in, status, o); }),
            0,
            operations(m, form, !o.restarts.empty()),
            0};
      r.of_ceiling = r.tflop_per_s() / ceiling;
      rows.push_back(std::move(r));
    }
    s.synchronize();
  }
  fmt::print(
      "five Newton-Schulz steps, {}; operations counted with symmetric products at half, beside gemm's\n{}",
      title_of(bench), format_rows(rows));
  if (!bench.json.empty()) write_rows(bench.json, "newton_schulz", title_of(bench), rows);
}

}  // namespace

Command newton_schulz_command(CLI::App& program) {
  const auto b = std::make_shared<DeviceBench>();
  CLI::App* app =
      program.add_subcommand("newton_schulz", "Muon's iteration beside a matrix product of the same device");
  add_device_options(*app, *b);
  app->add_option("--working", b->working, "type between products; fp16 on a GPU, fp32 elsewhere")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  add_symmetric_products(*app, b->symmetric_products, b->device);
  return {app, [b] { return run_newton_schulz(*b), true; }};
}

}  // namespace sherd_bench
