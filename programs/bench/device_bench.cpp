#include "device_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include <sherd/kernels/ops.h>
#include <sherd/kernels/squares/exact_sum.h>
#include <sherd/nn/ops.h>

namespace sherd_bench {
namespace {

using namespace sherd;

MeasureOptions options_of(const DeviceBench& b) {
  return {.rounds = b.rounds, .batch_ms = b.full() ? 20.0 : 5.0};
}

/// Rows of one device, each held against the ceilings measured first.
class Suite {
 public:
  Suite(const DeviceBench& bench, Device& device) : bench_(bench), device_(device), s_(device.compute()) {
    rows_.push_back(measure_copy(device, bench));
    copy_ = rows_.back().gb_per_s();
    for (const DType dtype : {DType::bf16, DType::f32}) {
      rows_.push_back(measure_gemm(device, bench, dtype));
      (dtype == DType::bf16 ? gemm16_ : gemm32_) = rows_.back().tflop_per_s();
    }
  }

  Stream& stream() { return s_; }
  bool full() const { return bench_.full(); }
  Tensor random(Shape shape, DType dtype) {
    const Tensor t = Tensor::empty(device_, shape, dtype, "bench");
    if (dtype == DType::f32) {
      ops::random_normal(s_, t.flat(), 0, 1, "bench", 0, 1);
    } else {
      const Tensor f = Tensor::empty(device_, std::move(shape), DType::f32, "bench");
      ops::random_normal(s_, f.flat(), 0, 1, "bench", 0, 1);
      ops::cast(s_, t, f);
      s_.synchronize();  // f goes
    }
    return t;
  }
  Tensor zeros(Shape shape, DType dtype) {
    const Tensor t = Tensor::empty(device_, std::move(shape), dtype, "bench");
    ops::fill(s_, t, 0);
    return t;
  }
  void bytes(std::string name, std::string shape, double count, const std::function<void()>& work) {
    Row r{std::move(name), std::move(shape), measure(device_, options_of(bench_), work), count, 0, 0};
    r.of_ceiling = r.gb_per_s() / copy_;
    rows_.push_back(std::move(r));
  }
  void flops(std::string name, std::string shape, double count, const std::function<void()>& work) {
    Row r{std::move(name), std::move(shape), measure(device_, options_of(bench_), work), 0, count, 0};
    r.of_ceiling = r.tflop_per_s() / gemm16_;
    rows_.push_back(std::move(r));
  }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  const DeviceBench& bench_;
  Device& device_;
  Stream& s_;
  double copy_ = 0, gemm16_ = 0, gemm32_ = 0;
  std::vector<Row> rows_;
};

std::string millions(int64_t count) { return fmt::format("{} Mi elements", count >> 20); }

void optimizers(Suite& suite) {
  Stream& s = suite.stream();
  const int64_t n = suite.full() ? int64_t{256} << 20 : int64_t{4} << 20;
  const auto count = static_cast<double>(n);
  const Tensor w = suite.random({n}, DType::f32), g = suite.random({n}, DType::f32);
  const Tensor m = suite.zeros({n}, DType::f32), v = suite.zeros({n}, DType::f32);
  // Reads w, m, v, g; writes w, m, v.
  suite.bytes("adamw", millions(n), 28 * count, [&] { ops::adamw(s, w, m, v, g, {.lr = 1e-6, .step = 10}); });
  const Tensor copy = suite.zeros({n}, DType::bf16);
  suite.bytes("adamw and bf16 copy", millions(n), 30 * count,
              [&] { ops::adamw(s, w, m, v, g, {.lr = 1e-6, .step = 10}, copy); });
  const Tensor sum = suite.zeros({ExactSum::kWords}, DType::i64);
  suite.bytes("sum of squares", millions(n), 4 * count, [&] { ops::accumulate_squares(s, sum, g); });

  const Tensor packed = suite.zeros({n}, DType::f16);
  const int64_t matrix = std::min<int64_t>(n, 4096 * 4096);
  std::vector<MomentumSegment> momentum;
  std::vector<UpdateSegment> update;
  for (int64_t at = 0; at < n; at += matrix) {
    momentum.push_back({m.data<float>() + at, g.data<float>() + at, nullptr, matrix, at});
    update.push_back({w.data<float>() + at, matrix, at, 0.999f, -1e-6f});
  }
  // Reads buffer and gradient, writes buffer and the packed message; reads and writes w, reads the message.
  suite.bytes("muon momentum, fp16 message", millions(n), 14 * count,
              [&] { ops::muon_momentum(s, packed, momentum, 0.95f, true); });
  suite.bytes("muon update, fp16 message", millions(n), 10 * count,
              [&] { ops::muon_update(s, update, packed); });
  for (UpdateSegment& segment : update)
    segment.copy = copy.flat(segment.at, segment.at + segment.count).raw();
  suite.bytes("muon update, fp16 message and bf16 copy", millions(n), 12 * count,
              [&] { ops::muon_update(s, update, packed, {}, DType::bf16); });
}

void rows_of_activations(Suite& suite) {
  Stream& s = suite.stream();
  const int64_t rows = suite.full() ? 32768 : 1024, cols = suite.full() ? 4096 : 512;
  const auto n = static_cast<double>(rows * cols);
  const std::string shape = fmt::format("{} x {} bf16", rows, cols);
  const Tensor x = suite.random({rows, cols}, DType::bf16), dy = suite.random({rows, cols}, DType::bf16);
  const Tensor y = suite.zeros({rows, cols}, DType::bf16), w = suite.random({cols}, DType::bf16);
  const Tensor rstd = suite.zeros({rows}, DType::f32), dw = suite.zeros({cols}, DType::f32);
  suite.bytes("rms norm", shape, 4 * n, [&] { ops::rms_norm_forward(s, y, rstd, x, w, 1e-5f); });
  suite.bytes("rms norm backward", shape, 6 * n, [&] { ops::rms_norm_backward(s, y, dw, dy, x, w, rstd); });
  suite.bytes("gelu", shape, 4 * n, [&] { ops::gelu_forward(s, y, x); });
  suite.bytes("gelu backward", shape, 6 * n, [&] { ops::gelu_backward(s, y, dy, x); });
}

/// One elementwise and one reduction engine: dense, repeated and transposed operands.
void arithmetic(Suite& suite) {
  Stream& s = suite.stream();
  const int64_t rows = suite.full() ? 32768 : 4096, cols = 4096;
  for (const DType t : {DType::f32, DType::bf16}) {
    const double pass = static_cast<double>(rows * cols) * static_cast<double>(size_of(t));
    const std::string shape = fmt::format("{} x {} {}", rows, cols, name_of(t));
    const Tensor x = suite.random({rows, cols}, t), y = suite.random({rows, cols}, t);
    const Tensor out = suite.zeros({rows, cols}, t), row = suite.random({cols}, t);
    const Tensor sums = suite.zeros({rows}, t), columns = suite.zeros({cols}, t);
    const auto map = [&](MapFunction f, const std::vector<ops::MapInput>& in) {
      ops::map(s, f, ops::dense(out), in);
    };
    suite.bytes("add", shape, 3 * pass, [&] { map(MapFunction::add, {x, y}); });
    suite.bytes("exp", shape, 2 * pass, [&] { map(MapFunction::exp, {x}); });
    suite.bytes("tanh", shape, 2 * pass, [&] { map(MapFunction::tanh, {x}); });
    suite.bytes("add a row", shape, 2 * pass, [&] {
      map(MapFunction::add, {x, ops::broadcast(ops::dense(row), {rows, cols})});
    });
    const ops::StridedView turned = ops::permuted(ops::dense(x.view({cols, rows})), {1, 0});
    suite.bytes("transpose", shape, 2 * pass, [&] { map(MapFunction::copy, {turned}); });
    suite.bytes("add a transpose", shape, 3 * pass, [&] { map(MapFunction::add, {y, turned}); });
    const Tensor heads = x.view({rows / 256, 256, cols / 64, 64}),
                 by_head = out.view({rows / 256, cols / 64, 256, 64});
    suite.bytes("permute heads", shape, 2 * pass, [&] {
      ops::map(s, MapFunction::copy, ops::dense(by_head), {ops::permuted(ops::dense(heads), {0, 2, 1, 3})});
    });
    suite.bytes("sum of rows", shape, pass,
                [&] { ops::reduce_dim(s, Reduction::sum, sums, x, rows, cols, 1); });
    suite.bytes("sum of columns", shape, pass,
                [&] { ops::reduce_dim(s, Reduction::sum, columns, x, 1, rows, cols); });
    suite.bytes("maximum of rows", shape, pass,
                [&] { ops::reduce_dim(s, Reduction::max, sums, x, rows, cols, 1); });
    s.synchronize();  // the tensors go
  }
}

void losses(Suite& suite) {
  Stream& s = suite.stream();
  const int64_t rows = suite.full() ? 8192 : 512, vocab = suite.full() ? 50304 : 2048;
  const auto n = static_cast<double>(rows * vocab);
  const std::string shape = fmt::format("{} x {} bf16", rows, vocab);
  const Tensor logits = suite.random({rows, vocab}, DType::bf16), d = suite.zeros({rows, vocab}, DType::bf16);
  const Tensor targets = suite.zeros({rows}, DType::i32), out = suite.zeros({rows}, DType::f32);
  suite.bytes("cross entropy", shape, 2 * n, [&] { ops::cross_entropy_forward(s, out, logits, targets); });
  suite.bytes("cross entropy backward", shape, 4 * n,
              [&] { ops::cross_entropy_backward(s, d, logits, targets, 1e-3f); });
  suite.bytes("cross entropy, both in one", shape, 4 * n,
              [&] { ops::cross_entropy_forward_backward(s, out, d, logits, targets, 1e-3f); });
}

void attention(Suite& suite) {
  Stream& s = suite.stream();
  for (const int64_t head_dim : {64, 128}) {
    const int64_t batch = suite.full() ? 4 : 1, seq = suite.full() ? 4096 : 1024;
    const int64_t heads = (suite.full() ? 2048 : 512) / head_dim;
    const Tensor qkv = suite.random({batch * seq, 3 * heads * head_dim}, DType::bf16);
    const Tensor dqkv = suite.zeros({batch * seq, 3 * heads * head_dim}, DType::bf16);
    const Tensor out = suite.zeros({batch * seq, heads * head_dim}, DType::bf16);
    const Tensor dout = suite.random({batch * seq, heads * head_dim}, DType::bf16);
    const Tensor lse = suite.zeros({batch, heads, seq}, DType::f32);
    const std::string shape = fmt::format("B {} T {} H {} x {} bf16", batch, seq, heads, head_dim);
    // Two products forward, five backward, of which causality leaves half.
    const double product = static_cast<double>(batch * heads * seq * seq * head_dim);
    suite.flops("attention", shape, 2 * product,
                [&] { ops::attention_forward(s, out, lse, qkv, batch, heads); });
    suite.flops("attention backward", shape, 5 * product,
                [&] { ops::attention_backward(s, dqkv, dout, out, lse, qkv, batch, heads); });
  }
}

}  // namespace

std::shared_ptr<Device> make_device(const DeviceBench& bench) {
  DeviceOptions o{.label = "bench",
                  .tf32 = bench.tf32,
                  .symmetric_products = parse_symmetric_products(bench.symmetric_products),
                  .attention = parse_attention(bench.attention)};
  o.threads =
      bench.threads > 0 ? bench.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return bench.device == "cuda" ? make_cuda_device(o) : make_cpu_device(o);
}

std::string title_of(const DeviceBench& b) {
  const bool own = b.symmetric_products != DeviceBench().symmetric_products;
  return fmt::format("{}{}{}, {} sizes, median of {}", b.device, b.tf32 ? " (tf32)" : "",
                     own ? " (symmetric products: " + b.symmetric_products + ")" : "",
                     b.full() ? "full" : "small", b.rounds);
}

Row measure_copy(Device& device, const DeviceBench& bench) {
  Stream& s = device.compute();
  const int64_t bytes = bench.full() ? int64_t{2} << 30 : int64_t{64} << 20;
  const Tensor from = Tensor::empty(device, {bytes / 4}, DType::f32, "bench");
  const Tensor to = Tensor::empty(device, {bytes / 4}, DType::f32, "bench");
  ops::fill(s, from, 1);
  const Timing t = measure(device, options_of(bench), [&] { ops::copy(s, to, from); });
  return {"copy", fmt::format("{} MiB", bytes >> 20), t, 2 * static_cast<double>(bytes), 0, 0};
}

Row measure_gemm(Device& device, const DeviceBench& bench, DType dtype) {
  Stream& s = device.compute();
  const int64_t n = bench.full() ? 8192 : 1024;
  const auto matrix = [&](const char* name) {
    const Tensor f = Tensor::empty(device, {n, n}, DType::f32, "bench");
    ops::random_normal(s, f.flat(), 0, 1, name, 0, 1);
    if (dtype == DType::f32) return f;
    const Tensor t = Tensor::empty(device, {n, n}, dtype, "bench");
    ops::cast(s, t, f);
    s.synchronize();  // f goes
    return t;
  };
  const Tensor a = matrix("a"), b = matrix("b"), c = Tensor::empty(device, {n, n}, dtype, "bench");
  const Timing t = measure(device, options_of(bench), [&] { ops::gemm(s, c, a, false, b, false); });
  const auto size = static_cast<double>(n);
  return {fmt::format("gemm {}", name_of(dtype)),
          fmt::format("{0} x {0} x {0}", n),
          t,
          0,
          2 * size * size * size,
          0};
}

/// Prints a table: copy, products, and the kernels of a training step.
void run_device(const DeviceBench& bench) {
  const auto device = make_device(bench);
  Suite suite(bench, *device);
  for (const auto part : {optimizers, rows_of_activations, arithmetic, losses, attention}) {
    part(suite);
    device->compute().synchronize();
  }
  fmt::print("{}; GB/s beside copy's, TFLOP/s beside gemm bf16's\n{}", title_of(bench),
             format_rows(suite.rows()));
  if (!bench.json.empty()) write_rows(bench.json, "device", title_of(bench), suite.rows());
}

void add_device_options(CLI::App& command, DeviceBench& bench) {
  command.add_option("--device", bench.device, "what to measure")
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  command.add_option("--threads", bench.threads, "of a CPU kernel; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--size", bench.size, "of the data; full on a GPU, small elsewhere")
      ->check(CLI::IsMember({"small", "full"}));
  command.add_option("--rounds", bench.rounds, "batches of calls; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--json", bench.json, "file for the same figures");
  command.add_flag("--tf32", bench.tf32, "products of fp32 matrices in tf32 (GPU)");
}

Command device_command(CLI::App& program) {
  const auto b = std::make_shared<DeviceBench>();
  CLI::App* app =
      program.add_subcommand("device", "kernels beside a copy and a matrix product of the same device");
  add_device_options(*app, *b);
  app->add_option("--attention", b->attention,
                  "what computes attention in bf16 on a GPU; auto: cuDNN where found")
      ->check(CLI::IsMember({"auto", "own", "cudnn"}))
      ->capture_default_str();
  return {app, [b] { return run_device(*b), true; }};
}

}  // namespace sherd_bench
