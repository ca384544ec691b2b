// NCCL memory for buffers that communicators register as symmetric windows. Private to comm/nccl.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <sherd/comm/nccl/detail/api.h>
#include <sherd/kernels/device/allocator.h>

namespace sherd::nccl {

/// One block of ncclMemAlloc's, which is cut into buffers in order. Blocks are coarse (2 MiB, or hundreds of
/// them where GPUs share memory by multicast), and one block needs one window for each communicator.
/// Returned to NCCL with the last reference.
class WindowBlock final : public MemorySource {
 public:
  /// `bytes`: of all buffers to come, each rounded as Allocator does; rounded up further to NCCL's
  /// granularity.
  WindowBlock(const NcclApi& api, int64_t bytes);
  ~WindowBlock() override;

  /// Makes the block at the first call, where the GPU is current.
  void* allocate(int64_t bytes) override;
  void release(void*, int64_t) noexcept override {}
  std::string owner() const override { return "NCCL (ncclMemAlloc, on the GPU)"; }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  const NcclApi& api_;
  const int64_t bytes_;
  char* data_ = nullptr;
  int64_t used_ = 0;
};

/// Returns why the running library has no symmetric windows; "" when it has them.
std::string why_no_windows(const NcclApi& api);

}  // namespace sherd::nccl
