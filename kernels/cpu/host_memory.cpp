#include <sys/mman.h>

#include <cstdlib>

#include <sherd/kernels/device/allocator.h>

namespace sherd {
namespace {

/// Smaller blocks come from malloc. Larger ones are mapped, so that giving one back makes the process smaller:
/// malloc would keep it, or leave holes. Under AddressSanitizer all come from malloc, which it watches.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kMapped = INT64_MAX;
#else
constexpr int64_t kMapped = int64_t{16} << 10;
#endif

class HostMemory final : public MemorySource {
 public:
  void* allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    if (bytes < kMapped) return std::aligned_alloc(128, size);
    void* const p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
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
