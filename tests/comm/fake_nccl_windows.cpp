// NCCL's memory and windows: what it asks of them, and what it writes to the log.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "comm/fake_nccl_world.h"

namespace sherd::test::fake_nccl {
namespace {

/// The range of `ranges` that has all of [p, p + bytes), and how far into it that is.
struct Place {
  const char* range;
  size_t offset;
  size_t bytes;  // of the range
};
std::optional<Place> place_of(const std::map<const char*, size_t>& ranges, const void* p, size_t bytes) {
  const auto* const begin = static_cast<const char*>(p);
  const auto next = ranges.upper_bound(begin);
  if (next == ranges.begin()) return std::nullopt;
  const auto [range, size] = *std::prev(next);
  const auto offset = static_cast<size_t>(begin - range);
  if (offset + bytes > size) return std::nullopt;
  return Place{range, offset, size};
}

}  // namespace

void open_windows(Clique& clique, const std::map<int, Op>& ops) {
  for (const auto& [rank, op] : ops) {
    if (op->count != ops.begin()->second->count) violation("windows of different sizes");
    if (op->count == 0 || !place_of(world().memory, op->send, op->count))
      violation("a window of memory that is not ncclMemAlloc's");
    if (!world().faults.windows) continue;
    clique.members[static_cast<size_t>(rank)]->windows.emplace(static_cast<const char*>(op->send), op->count);
    *op->window = reinterpret_cast<nccl::Window>(const_cast<void*>(op->send));
    ++world().log.windows;
  }
}

void check_windows(const Clique& clique, const std::map<int, Op>& ops) {
  const Operation& first = *ops.begin()->second;
  const size_t n = ops.size(), bytes = first.count * bytes_of(first.type);
  const bool gathers = first.kind == Kind::all_gather, scatters = first.kind == Kind::reduce_scatter;
  const bool connects = clique.members[static_cast<size_t>(ops.begin()->first)]->operations == 0;
  if (n == 1 || connects || (!gathers && !scatters && first.kind != Kind::all_reduce)) return;
  size_t inside = 0;
  std::optional<Place> shared;  // the operand of which every rank reads or writes all ranks' slices
  for (const auto& [rank, op] : ops) {
    const auto& windows = clique.members[static_cast<size_t>(rank)]->windows;
    const auto send = place_of(windows, op->send, scatters ? n * bytes : bytes);
    const auto recv = place_of(windows, op->recv, gathers ? n * bytes : bytes);
    if (!send || !recv) continue;
    ++inside;
    const auto& reached = gathers ? recv : send;
    if (shared && shared->offset != reached->offset) violation("symmetric operands at different offsets");
    shared = reached;
  }
  if (inside != 0 && inside != n) violation("a collective whose memory is in windows on some ranks alone");
  ++(inside == n ? world().log.in_windows : world().log.outside);
}

ncclResult_t mem_alloc(void** data, size_t bytes) {
  std::lock_guard lock(world().mutex);
  if (!world().faults.memory) return ncclUnhandledCudaError;
  *data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  world().memory.emplace(static_cast<const char*>(*data), bytes);
  ++world().log.blocks;
  return ncclSuccess;
}

ncclResult_t mem_free(void* data) {
  std::lock_guard lock(world().mutex);
  if (world().memory.erase(static_cast<const char*>(data)) != 1) violation("ncclMemFree of other memory");
  for (const ncclComm& comm : world().communicators)
    if (!comm.dead && comm.windows.contains(static_cast<const char*>(data)))
      violation("memory of an open window was freed");
  std::free(data);
  ++world().log.freed;
  return ncclSuccess;
}

void drop_windows(ncclComm_t comm) { comm->windows.clear(); }

}  // namespace sherd::test::fake_nccl
