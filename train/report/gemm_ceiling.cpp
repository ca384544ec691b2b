#include <sherd/train/report/gemm_ceiling.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kProductSeconds = 0.01;  // long beside what starts a kernel, short beside the measurement
constexpr double kSeconds = 0.15;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Random numbers: processors draw less power, and run faster, on zeros.
Tensor matrix(Device& device, int64_t n, DType dtype, const char* name) {
  const Tensor f = Tensor::empty(device, {n, n}, DType::f32, "ceiling");
  ops::random_normal(device.compute(), f.flat(), 0, 1, name, 0, 1);
  if (dtype == DType::f32) return f;
  const Tensor cast = Tensor::empty(device, {n, n}, dtype, "ceiling");
  ops::cast(device.compute(), cast, f);
  device.compute().synchronize();  // f goes
  return cast;
}

class Product {
 public:
  Product(Device& device, int64_t n, DType dtype)
      : device_(device),
        n_(n),
        a_(matrix(device, n, dtype, "a")),
        b_(matrix(device, n, dtype, "b")),
        c_(Tensor::empty(device, {n, n}, dtype, "ceiling")) {}

  double flops() const {
    return 2.0 * static_cast<double>(n_) * static_cast<double>(n_) * static_cast<double>(n_);
  }
  /// So many of them. @returns how long they took, in seconds.
  double run(int64_t times) {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < times; ++i) ops::gemm(device_.compute(), c_, a_, false, b_, false);
    device_.compute().synchronize();
    return seconds_since(start);
  }

 private:
  Device& device_;
  int64_t n_;
  Tensor a_, b_, c_;
};

/// The side of matrices of which A, B, C and the random numbers take at most an eighth of the limit.
int64_t largest_side(const Device& device, int64_t limit) {
  int64_t side = device.kind() == DeviceKind::cpu ? 1024 : 8192;
  while (limit > 0 && side > 32 && 4 * side * side * 4 > limit / 8) side /= 2;
  return side;
}

/// This rank's rate while all ranks compute.
double local_rate(Communicator& world, Device& device, DType dtype) {
  const int64_t most = largest_side(device, device.allocator().limit_bytes());
  int64_t n = std::min<int64_t>(most, 128);
  double seconds = 0;  // of a product
  while (true) {
    Product product(device, n, dtype);
    product.run(1);  // makes what the first one makes
    seconds = std::max(1e-9, product.run(1));
    if (2 * n > most || 8 * seconds > kProductSeconds) break;
    n *= 2;
  }
  Product product(device, n, dtype);
  product.run(1);
  world.barrier(device.compute());
  device.compute().synchronize();
  const auto batch = std::max<int64_t>(1, static_cast<int64_t>(kProductSeconds / seconds));
  const Clock::time_point start = Clock::now();
  int64_t done = 0;
  while (seconds_since(start) < kSeconds) {
    product.run(batch);
    done += batch;
  }
  return product.flops() * static_cast<double>(done) / seconds_since(start);
}

}  // namespace

double gemm_ceiling(Communicator& world, Device& device, DType dtype) {
  double rate = local_rate(world, device, dtype);
  const Tensor sum = Tensor::empty(device, {1}, DType::f64, "ceiling");
  Stream& s = device.compute();
  ops::copy_from_host(s, sum, &rate, sizeof rate);
  world.all_reduce(s, sum);
  ops::copy_to_host(s, &rate, sum);
  device.allocator().reset_peak();
  return rate;
}

}  // namespace sherd
