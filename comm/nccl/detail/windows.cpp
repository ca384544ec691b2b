#include <sherd/comm/nccl/detail/windows.h>

#include <fmt/format.h>

namespace sherd::nccl {
namespace {

// Granularity of physical memory that other GPUs can map. NCCL may round up further, without reporting it.
constexpr int64_t kGranularity = int64_t{2} << 20;

constexpr int kFirstWithWindows = 22700;  // 2.27.0, as ncclGetVersion says it

}  // namespace

WindowBlock::WindowBlock(const NcclApi& api, int64_t bytes)
    : api_(api), bytes_((bytes + kGranularity - 1) / kGranularity * kGranularity) {}

WindowBlock::~WindowBlock() {
  if (data_) api_.mem_free(data_);
}

// Returns the next piece, or null when NCCL has no memory or the block is used up; the allocator then throws
// OutOfMemory.
void* WindowBlock::allocate(int64_t bytes) {
  if (!data_) {
    void* made = nullptr;
    if (api_.mem_alloc(&made, static_cast<size_t>(bytes_)) != ncclSuccess) return nullptr;
    data_ = static_cast<char*>(made);
  }
  if (bytes > bytes_ - used_) return nullptr;
  char* const piece = data_ + used_;
  used_ += bytes;
  return piece;
}

std::string why_no_windows(const NcclApi& api) {
  int version = 0;
  if (api.get_version) api.get_version(&version);
  if (version >= kFirstWithWindows && api.mem_alloc && api.mem_free && api.window_register &&
      api.window_deregister)
    return "";
  if (version >= kFirstWithWindows) return "this program was built with the headers of an NCCL before 2.27";
  return fmt::format("NCCL {}.{}.{} has no symmetric windows, 2.27 has", version / 10000, version / 100 % 100,
                     version % 100);
}

}  // namespace sherd::nccl
