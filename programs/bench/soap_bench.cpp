#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/soap/detail/state_tensors.h>
#include <sherd/kernels/soap/reference/step.h>
#include <sherd/kernels/soap/soap.h>
#include <sherd/train/data/data.h>

#include "commands.h"
#include "measure.h"
#include "train_gpt/run/trainer.h"

namespace sherd_bench {
namespace {

using namespace sherd;

struct SoapBench {
  int dim = 256, layers = 2, rounds = 5;
};

/// Runs `work` on the device's stream, as SOAP's kernel is run.
double seconds_of(Device& device, int rounds, const std::function<void()>& work) {
  return measure(device, {.rounds = rounds, .batch_ms = 1},
                 [&] { device.compute().submit("ceiling", [&work](ExecutionContext&) { work(); }); })
      .median;
}

/// Random values; elements below the diagonal are as large as those above.
std::vector<double> random_doubles(Device& device, int64_t count) {
  const Tensor t = Tensor::empty(device, {count}, DType::f32, "bench");
  ops::random_normal(device.compute(), t, 0, 1, "bench", 0, 1);
  const std::vector<float> values = ops::to_floats(device.compute(), t);
  return {values.begin(), values.end()};
}

/// Seconds of a QR, and FLOP/s of a product, of side k.
struct SoapCeilings {
  double qr_seconds, product_rate;
};
SoapCeilings ceilings(Device& device, int64_t k, int rounds) {
  const SoapRoutines& r = cpu::soap_routines();
  const std::vector<double> a = random_doubles(device, k * k);
  std::vector<double> q(a.size()), c(a.size()), work(static_cast<size_t>(soap_routine_doubles(k)));
  const double copy = seconds_of(device, rounds, [&] { std::copy(a.begin(), a.end(), q.begin()); });
  const double qr = seconds_of(device, rounds, [&] {
    std::copy(a.begin(), a.end(), q.begin());
    r.orthonormal_rows(k, q.data(), work.data());
  });
  const double product =
      seconds_of(device, rounds, [&] { r.product(false, true, k, k, k, a.data(), a.data(), c.data()); });
  return {qr - copy, 2 * static_cast<double>(k) * static_cast<double>(k) * static_cast<double>(k) / product};
}

void print_row(const std::string& name, double seconds, double flops, double products, double qr) {
  fmt::print("{:<22}{:>10.1f}{:>10.2f}{:>14.1f}{:>12.1f}{:>12.1f}{:>8.2f}\n", name, seconds * 1e3,
             flops * 1e-9, flops / seconds * 1e-9, products * 1e3, qr * 1e3, (products + qr) / seconds);
}

/// Least time of a step of one matrix at the ceilings, in seconds, and its FLOPs.
struct SoapLeast {
  double products = 0, qr = 0, flops = 0;
  void add(const SoapLeast& other, int times) {
    products += times * other.products;
    qr += times * other.qr;
    flops += times * other.flops;
  }
};

SoapLeast measure_shape(Device& device, const SoapBench& b, int64_t m, int64_t n) {
  const SoapCeilings left = ceilings(device, m, b.rounds), right = ceilings(device, n, b.rounds);
  Stream& s = device.compute();
  const Tensor memory = Tensor::empty(device, {soap_state_elements(m, n, true, true)}, DType::f32, "bench");
  ops::fill(s, memory, 0);
  const Tensor in = Tensor::empty(device, {1, m, n}, DType::f32, "bench"),
               out = Tensor::empty(device, {1, m, n}, DType::f32, "bench"),
               status = Tensor::empty(device, {1}, DType::i32, "bench");
  ops::random_normal(s, in.flat(), 0, 1, "bench", 0, 2);
  const std::vector<SoapMatrix> matrices = {{soap_layout(memory.data<float>(), m, n, true, true), nullptr}};
  const double seconds = measure(device, {.rounds = b.rounds, .batch_ms = 1}, [&] {
                           ops::soap_step(s, out, in, status, matrices, {});
                         }).median;
  const auto dm = static_cast<double>(m), dn = static_cast<double>(n);
  // Six products of each side with the matrix, and two of each side with its factor; the rest of soap_flops() is QR.
  const double rate = std::max(left.product_rate, right.product_rate);
  const SoapLeast least = {.products = (12 * dm * dn * (dm + dn) + 4 * (dm * dm * dm + dn * dn * dn)) / rate,
                           .qr = left.qr_seconds + right.qr_seconds,
                           .flops = soap_flops(dm, dn, true, true)};
  print_row(fmt::format("{} x {}", m, n), seconds, least.flops, least.products, least.qr);
  return least;
}

/// The optimizer's part of train_gpt's steps on one rank, beside the sum of its matrices.
void measure_phase(const SoapBench& b, const SoapLeast& least) {
  constexpr int kWarmUp = 2;  // the first step computes eigenvectors
  train_gpt::TrainConfig config;
  config.optimizer = train_gpt::OptimizerWord::soap;
  config.dim = b.dim;
  config.layers = b.layers;
  config.heads = 1;
  config.seq = config.batch = 4;
  config.steps = kWarmUp + b.rounds;
  const auto windows =
      std::make_shared<const TokenWindows>(ByteData::load(config.data), static_cast<int64_t>(config.seq));
  std::vector<double> times;
  launch(1, {.device = {.threads = 1}}, [&](RankContext& rank) {
    train_gpt::Trainer trainer(rank, config, windows);
    for (int64_t step = 0; step < config.steps; ++step) {
      const double ms = trainer.train_step().optim_ms;
      if (step >= kWarmUp) times.push_back(ms);
    }
  });
  print_row(fmt::format("phase of {} layers", b.layers), median(times) * 1e-3, least.flops, least.products,
            least.qr);
}

void run_soap(const SoapBench& b) {
  const auto device = make_cpu_device({.label = "bench", .threads = 1});
  fmt::print("KL-SOAP, one rank of one thread, double, median of {}\n", b.rounds);
  fmt::print("{:<22}{:>10}{:>10}{:>14}{:>12}{:>12}{:>8}\n", "step of", "ms", "GFLOP", "GFLOP/s",
             "products ms", "QR ms", "share");
  const int64_t d = b.dim;
  SoapLeast layer, all;
  layer.add(measure_shape(*device, b, d, d), 4);  // q, k, v and the projection
  layer.add(measure_shape(*device, b, 4 * d, d), 1);
  layer.add(measure_shape(*device, b, d, 4 * d), 1);
  all.add(layer, b.layers);
  measure_phase(b, all);
}

}  // namespace

Command soap_command(CLI::App& program) {
  const auto b = std::make_shared<SoapBench>();
  CLI::App* app =
      program.add_subcommand("soap",
                             "KL-SOAP on CPUs; products and QR: their times alone at rates measured "
                             "in the run; share: their sum / the time");
  app->add_option("--dim", b->dim, "width of a transformer's matrices")
      ->check(CLI::Range(8, static_cast<int>(kLargestSoapSide / 4)))
      ->capture_default_str();
  app->add_option("--layers", b->layers, "blocks of the transformer whose optimizer phase is measured")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--rounds", b->rounds, "measurements of each; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return {app, [b] { return run_soap(*b), true; }};
}

}  // namespace sherd_bench
