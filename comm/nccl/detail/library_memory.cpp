#include <sherd/comm/nccl/detail/library_memory.h>

#include <string>

namespace sherd::nccl {
namespace {

/// Blocks that stand for memory whose address NCCL keeps to itself.
class Elsewhere final : public MemorySource {
 public:
  void* allocate(int64_t) override { return new char; }
  void release(void* p, int64_t) noexcept override { delete static_cast<char*>(p); }
  std::string owner() const override { return "NCCL"; }
};

}  // namespace

int64_t LibraryMemory::beside_the_allocator() const {
  return device_.taken_memory() - device_.allocator().held_bytes();
}

void LibraryMemory::count(const std::function<void()>& call) {
  if (device_.total_memory() == 0) return call();
  // The device's figure includes all processes on the GPU; the difference over the call is NCCL's share.
  const int64_t before = beside_the_allocator();
  call();
  const int64_t bytes = beside_the_allocator() - before;
  if (bytes <= 0) return;
  Allocator& allocator = device_.allocator();
  void* const block =
      allocator.allocate_from(std::make_shared<Elsewhere>(), bytes, MemoryClass::message, "NCCL");
  counted_.emplace_back(block, [&allocator](void* p) { allocator.release(p, true); });
}

}  // namespace sherd::nccl
