#include <sherd/train/report/process_memory.h>

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <locale>
#include <set>

#include <sherd/kernels/ops.h>

namespace sherd {

ProcessMemory ProcessMemory::now() {
  int64_t size = 0, resident = 0, shared = 0;
  std::ifstream file("/proc/self/statm");
  file.imbue(std::locale::classic());
  file >> size >> resident >> shared;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const struct mallinfo2 heap = ::mallinfo2();
  return {resident * page, shared * page, static_cast<int64_t>(heap.arena + heap.hblkhd)};
}

int64_t held_by(Device& device) {
  std::set<Allocator*> host{&device.staging(), &device.copies()};
  if (device.kind() == DeviceKind::cpu) host.insert(&device.allocator());
  if (device.tier_file() == nullptr) host.insert(&device.host_tier());
  int64_t bytes = 0;
  for (const Allocator* a : host) bytes += a->held_bytes();
  return bytes;
}

MemoryGrowth memory_growth(const ProcessMemory& start, Communicator& world) {
  Device& device = world.device();
  Stream& s = device.compute();
  const auto ranks = static_cast<size_t>(world.size());
  const int64_t mine[2] = {static_cast<int64_t>(::getpid()), held_by(device)};
  std::vector<int64_t> all(2 * ranks);
  const Tensor send = Tensor::empty(device, {2}, DType::i64, "metrics");
  const Tensor recv = Tensor::empty(device, {2 * world.size()}, DType::i64, "metrics");
  ops::copy_from_host(s, send, mine, sizeof mine);
  world.all_gather(s, recv, send);
  ops::copy_to_host(s, all.data(), recv);
  const ProcessMemory now = ProcessMemory::now();
  MemoryGrowth g{.resident = now.resident,
                 .at_start = start.resident,
                 .heap = now.heap - start.heap,
                 .files = now.files - start.files};
  for (size_t r = 0; r < ranks; ++r)
    if (all[2 * r] == mine[0]) g.ranks += all[2 * r + 1];
  return g;
}

std::string format_growth(const MemoryGrowth& g) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "process: {:.1f} MiB resident, {:.1f} at start; of the {:.1f} between, ranks hold {:.1f}, malloc "
      "{:.1f}, programs' files {:.1f}, together {:.0f} %\n",
      mib(g.resident), mib(g.at_start), mib(g.grown()), mib(g.ranks), mib(g.heap), mib(g.files),
      g.grown() > 0 ? 100.0 * static_cast<double>(g.explained()) / static_cast<double>(g.grown()) : 100.0);
}

}  // namespace sherd
