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
  // Other threads may allocate meanwhile.
  for (;;) {
    const int64_t held = device_.allocator().held_bytes(), taken = device_.taken_memory();
    if (device_.allocator().held_bytes() == held) return taken - held;
  }
}

std::shared_ptr<void> LibraryMemory::count(const std::function<void()>& call) {
  if (device_.total_memory() == 0) {
    call();
    return {};
  }
  // The device's figure includes all processes on the GPU; the difference over the calls is NCCL's share. What one of them
  // has counted is then held by the allocator, and the others do not count it again.
  {
    std::lock_guard lock(mutex_);
    if (running_++ == 0) before_ = beside_the_allocator();
  }
  const auto ended = [this] {
    std::unique_lock lock(mutex_);
    --running_;
    return lock;
  };
  try {
    call();
  } catch (...) {
    ended();
    throw;
  }
  const std::unique_lock lock = ended();
  const int64_t bytes = beside_the_allocator() - before_;
  if (bytes <= 0) return {};
  Allocator& allocator = device_.allocator();
  void* const block =
      allocator.allocate_from(std::make_shared<Elsewhere>(), bytes, MemoryClass::message, "NCCL");
  return {block, [&allocator](void* p) { allocator.release(p, true); }};
}

}  // namespace sherd::nccl
