#include <sherd/train/plan/measure_hardware.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include <sherd/kernels/device/hardware.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastSeconds = 0.05;  // of one measurement

/// Seconds of one operation that `issue` queues, among so many that all take kLeastSeconds.
template <class Issue>
double seconds_of_one(Stream& s, Issue issue) {
  issue();  // makes what the first one makes
  s.synchronize();
  for (int64_t times = 1;; times *= 2) {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < times; ++i) issue();
    s.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds >= kLeastSeconds) return seconds / static_cast<double>(times);
  }
}

Tensor buffer_of(Device& device, Shape shape, DType dtype) {
  Tensor t = Tensor::empty(device, std::move(shape), dtype, MemoryClass::scratch, "measurement");
  ops::fill(device.compute(), t, 1);
  return t;
}

/// Bytes/s of memory that is taken, written and returned, less the time of writing it.
double measure_fresh(Device& device) {
  Stream& s = device.compute();
  // Neither size serves a request of the other, and one of them is all that may be kept. On CPUs one has small pages, the other
  // large ones.
  constexpr int64_t kSizes[] = {int64_t{3} << 20, int64_t{6} << 20};
  const auto write = [&](int64_t bytes) { (void)buffer_of(device, {bytes}, DType::u8); };
  const double known = seconds_of_one(s, [&] { write(kSizes[1]); });
  const std::shared_ptr<void> bound(nullptr, [&](void*) { device.allocator().keep_within(0); });
  device.allocator().keep_within(device.allocator().live_bytes() + kSizes[1]);
  const double both = seconds_of_one(s, [&] {
    for (const int64_t bytes : kSizes) write(bytes);
  });
  constexpr double kBytes = kSizes[0] + kSizes[1];
  return kBytes / std::max(both - known * kBytes / kSizes[1], .1 * both);
}

SizedRate measure_product(Device& device, DType dtype, int64_t n) {
  Stream& s = device.compute();
  const Tensor a = buffer_of(device, {n, n}, dtype), b = buffer_of(device, {n, n}, dtype),
               c = buffer_of(device, {n, n}, dtype);
  const double seconds = seconds_of_one(s, [&] { ops::gemm(s, c, a, false, b, true); });
  const double flops = 2.0 * std::pow(static_cast<double>(n), 3);
  return {flops, flops / seconds};
}

void measure_products(Device& device, DType dtype, std::vector<SizedRate>& products, KindRates& rates) {
  const int64_t most = device.kind() == DeviceKind::cpu ? 1024 : 8192;
  for (int64_t n = 32; n <= most; n *= 2) products.push_back(measure_product(device, dtype, n));
  const double odd = measure_product(device, dtype, most - 1).rate;
  rates[WorkKind::product] = {{1, odd}, {7, odd}};
}

LinkProfile measure_link(RankContext& rank, double memory_bytes_per_s) {
  Device& device = *rank.device;
  Stream& s = device.compute();
  const int ranks = rank.world->size();
  if (ranks == 1) return {0, {{1, memory_bytes_per_s}}};
  LinkProfile link;
  for (int64_t slice = 1; slice <= int64_t{16} << 20; slice *= 16) {
    const Tensor send = buffer_of(device, {slice}, DType::u8),
                 recv = buffer_of(device, {ranks * slice}, DType::u8);
    // Ranks must agree on the number of calls.
    constexpr int kCalls = 64;
    rank.world->barrier(s);
    s.synchronize();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i) rank.world->all_gather(s, recv, send);
    s.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / kCalls;
    if (slice == 1) {
      link.latency_s = seconds / std::log2(ranks);
      continue;
    }
    const auto bytes = static_cast<double>((ranks - 1) * slice);
    link.bytes_per_s.push_back(
        {bytes, bytes / std::max(seconds - link.latency_s * std::log2(ranks), .1 * seconds)});
  }
  return link;
}

}  // namespace

int64_t memory_of_host() { return ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE); }

int64_t memory_of(const RankContext& rank) {
  const int64_t memory = rank.device->total_memory();
  return memory > 0 ? memory : memory_of_host() / rank.world->size();
}

HardwareProfile measure_hardware(RankContext& rank) {
  Device& device = *rank.device;
  Stream& s = device.compute();
  constexpr int64_t kCopied = int64_t{64} << 20;
  const Tensor from = buffer_of(device, {kCopied}, DType::u8), to = buffer_of(device, {kCopied}, DType::u8);
  HardwareProfile p{.name = kMeasuredHardware, .ranks_per_host = rank.world->size()};
  p.memory_bytes = memory_of(rank);
  if (rank.world->size() > 1) {
    const int64_t before = device.allocator().live_bytes("NCCL");
    const auto clone = rank.world->clone();
    const Tensor one = buffer_of(device, {1}, DType::u8),
                 all = buffer_of(device, {rank.world->size()}, DType::u8);
    clone->all_gather(s, all, one);  // the first call takes memory, too
    s.synchronize();
    p.communicator_bytes = device.allocator().live_bytes("NCCL") - before;
  }
  p.shares_cores =
      device.kind() == DeviceKind::cpu &&
      rank.world->size() * device.threads() >= static_cast<int>(std::thread::hardware_concurrency());
  p.memory_bytes_per_s = 2.0 * kCopied / seconds_of_one(s, [&] { ops::copy(s, to, from); });
  p.fresh_bytes_per_s = measure_fresh(device);
  const Tensor rest = Tensor::at(Place::host, device, {kCopied}, DType::u8, MemoryClass::scratch, "measured");
  p.offload_bytes_per_s = kCopied / seconds_of_one(s, [&] { ops::copy(s, rest, from); });
  const Tensor one = to.flat(0, 1);
  p.operation_s = seconds_of_one(s, [&] { ops::fill(s, one, 0); });
  measure_products(device, DType::f32, p.products_32, p.rates_32);
  measure_products(device, DType::bf16, p.products_16, p.rates_16);
  if (const auto known = profile_of_device(hardware_of(device).name)) {
    p.peak_flops = known->peak_flops;
    p.peak_flops_32 = known->peak_flops_32;
  }
  p.host = p.network = measure_link(rank, p.memory_bytes_per_s);
  return p;
}

}  // namespace sherd
