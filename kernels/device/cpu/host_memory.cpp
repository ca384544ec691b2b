#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <sherd/kernels/device/allocator.h>

namespace sherd {
namespace {

/// Smaller blocks come from malloc. Larger ones are mapped, so that giving one back makes the process smaller:
/// malloc would keep it, or leave holes. In builds with AddressSanitizer all come from malloc, which it watches.
constexpr int64_t kMapped = SHERD_MAPS_BLOCKS ? int64_t{16} << 10 : INT64_MAX;

/// Blocks from here on begin at a large page's boundary, and the kernel is asked for large pages: every
/// matrix product reads all of a unit's weights. With pages of 4 KiB address translation takes a seventh of a
/// step (docs/performance.md). Where the kernel has none to give, the pages are small; where it has, what is
/// used of a block becomes resident 2 MiB at a time.
constexpr int64_t kLarge = int64_t{4} << 20;
constexpr size_t kLargePage = size_t{2} << 20;

void* map(size_t size) {
  void* const p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

/// A block at a boundary is cut out of a mapping longer by one large page; the memory before and behind it is
/// returned at once. The address space then holds exactly the block, and `munmap(p, size)` releases all of
/// it.
void* map_large(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t rounded = (size + page - 1) / page * page;
  auto* const all = static_cast<std::byte*>(map(rounded + kLargePage));
  if (all == nullptr) return map(size);  // the address space may have room for the block alone
  const size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(all) % kLargePage) % kLargePage;
  if (before > 0) ::munmap(all, before);
  ::munmap(all + before + rounded, kLargePage - before);
  ::madvise(all + before, rounded,
            MADV_HUGEPAGE);  // advice: a kernel without large pages refuses it, to no harm
  return all + before;
}

class HostMemory final : public MemorySource {
 public:
  void* allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    if (bytes < kMapped) return std::aligned_alloc(128, size);
    return bytes < kLarge ? map(size) : map_large(size);
  }
  void release(void* p, int64_t bytes) noexcept override {
    if (bytes < kMapped) {
      std::free(p);
    } else {
      ::munmap(p, static_cast<size_t>(bytes));
    }
  }
  std::string owner() const override { return "the system"; }
};

}  // namespace

std::unique_ptr<MemorySource> host_memory() { return std::make_unique<HostMemory>(); }

}  // namespace sherd
