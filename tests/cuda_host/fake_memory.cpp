// CUDA's runtime, imitated on the host: memory and copies. See fake.h.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fake_runtime.h"
#include "strict.h"

using namespace cuda_host::runtime;

namespace {

using cuda_host::Live;

constexpr size_t kAlignment = 512;

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

/// Returns the block that contains [p, p + bytes), or null. Under the mutex.
const std::pair<const uintptr_t, Block>* find_block(const void* p, size_t bytes = 0) {
  auto& blocks = machine().blocks;
  auto next = blocks.upper_bound(address(p));
  if (next == blocks.begin()) return nullptr;
  --next;
  return address(p) + bytes <= next->first + std::max<size_t>(next->second.bytes, 1) ? &*next : nullptr;
}

/// On the device, all of it? What begins in no known block is the host's.
cudaError_t on_device(const void* p, size_t bytes, bool& answer) {
  std::lock_guard lock(machine().mutex);
  const auto* block = find_block(p);
  answer = block && block->second.type == cudaMemoryTypeDevice;
  return !answer || find_block(p, bytes) ? cudaSuccess : cudaErrorIllegalAddress;
}

cudaError_t check_copy(const void* dst, size_t dst_bytes, const void* src, size_t src_bytes,
                       cudaMemcpyKind kind) {
  bool to_device = false, from_device = false;
  if (const cudaError_t error = on_device(dst, dst_bytes, to_device)) return error;
  if (const cudaError_t error = on_device(src, src_bytes, from_device)) return error;
  switch (kind) {
    case cudaMemcpyDefault:
      return cudaSuccess;
    case cudaMemcpyHostToHost:
      return to_device || from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device ? cudaSuccess : cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidMemcpyDirection;
  }
}

/// Memory of the host that no call has pinned.
bool pageable(const void* p) {
  std::lock_guard lock(machine().mutex);
  return !find_block(p);
}

/// Copies on the stream. As in CUDA, pageable memory is read before the call returns, and written before
/// that.
cudaError_t copy_rows(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                      size_t height, cudaMemcpyKind kind, cudaStream_t stream = nullptr) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (height > 1 && (width > dst_pitch || width > src_pitch)) return cudaErrorInvalidPitchValue;
  const size_t span = src_pitch * (height - 1) + width;
  if (const cudaError_t error = check_copy(dst, dst_pitch * (height - 1) + width, src, span, kind))
    return error;
  const bool writes_now = pageable(dst);
  if (writes_now && captured(stream)) return cudaErrorStreamCaptureUnsupported;
  std::shared_ptr<std::vector<char>> staged;
  if (cuda_host::late() && pageable(src)) {
    const char* bytes = static_cast<const char*>(src);
    staged = std::make_shared<std::vector<char>>(bytes, bytes + span);
  }
  cuda_host::issue_on(stream, [=] {
    const char* from = staged ? staged->data() : static_cast<const char*>(src);
    for (size_t r = 0; r < height; ++r)
      std::memmove(static_cast<char*>(dst) + r * dst_pitch, from + r * src_pitch, width);
  });
  if (writes_now) cuda_host::synchronize(*cuda_host::mark(id_of(stream)));
  return cudaSuccess;
}

cudaError_t set_rows(void* dst, size_t pitch, int value, size_t width, size_t height,
                     cudaStream_t stream = nullptr) {
  if (width == 0 || height == 0) return cudaSuccess;
  bool device = false;
  if (const cudaError_t error = on_device(dst, pitch * (height - 1) + width, device)) return error;
  if (!device) return cudaErrorInvalidValue;
  cuda_host::issue_on(stream, [=] {
    for (size_t r = 0; r < height; ++r) std::memset(static_cast<char*>(dst) + r * pitch, value, width);
  });
  return cudaSuccess;
}

/// Finishes the work of the default stream before the call returns.
cudaError_t at_once(cudaError_t result) {
  cuda_host::synchronize(*cuda_host::mark(0));
  return result;
}

cudaError_t allocate(void** p, size_t bytes, cudaMemoryType type) {
  if (!p) return cudaErrorInvalidValue;
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  const bool device = type == cudaMemoryTypeDevice;
  Machine& m = machine();
  std::lock_guard lock(m.mutex);
  if (device && (bytes > static_cast<size_t>(cuda_host::kDeviceBytes) ||
                 m.used[current_device()] + static_cast<int64_t>(bytes) > cuda_host::kDeviceBytes))
    return cudaErrorMemoryAllocation;
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!memory) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xff, bytes);
  m.blocks[address(memory)] = {bytes, type, current_device(), false};
  if (device) {
    m.used[current_device()] += static_cast<int64_t>(bytes);
    cuda_host::count_live(&Live::device_blocks, 1);
    cuda_host::count_live(&Live::device_bytes, static_cast<int64_t>(bytes));
  } else {
    cuda_host::count_live(&Live::host_blocks, 1);
  }
  *p = memory;
  return cudaSuccess;
}

/// Waits for the device, as CUDA does before it frees; the caller orders other devices' use of the memory.
void let_device_finish(const void* p) {
  int device = current_device();
  {
    std::lock_guard lock(machine().mutex);
    if (const auto* block = find_block(p)) device = block->second.device;
  }
  run_dry(device);
}

cudaError_t release(void* p, cudaMemoryType type) {
  if (!p) return cudaSuccess;
  let_device_finish(p);
  Machine& m = machine();
  std::lock_guard lock(m.mutex);
  const auto block = m.blocks.find(address(p));
  if (block == m.blocks.end() || block->second.type != type || block->second.registered)
    return cudaErrorInvalidValue;
  if (type == cudaMemoryTypeDevice) {
    m.used[block->second.device] -= static_cast<int64_t>(block->second.bytes);
    cuda_host::count_live(&Live::device_blocks, -1);
    cuda_host::count_live(&Live::device_bytes, -static_cast<int64_t>(block->second.bytes));
  } else {
    cuda_host::count_live(&Live::host_blocks, -1);
  }
  m.blocks.erase(block);
  std::free(p);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** p, size_t bytes) {
  ENTER(cudaMalloc);
  const cuda_host::strict::MemoryCall call(current_device(), "cudaMalloc");
  return report(allocate(p, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFree(void* p) {
  ENTER(cudaFree);
  const cuda_host::strict::MemoryCall call(current_device(), "cudaFree");
  return report(release(p, cudaMemoryTypeDevice));
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  ENTER(cudaMallocAsync);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  return report(allocate(p, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  ENTER(cudaFreeAsync);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  return report(release(p, cudaMemoryTypeDevice));
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  ENTER(cudaHostAlloc);
  const cuda_host::strict::MemoryCall call(current_device(), "cudaHostAlloc");
  return report(allocate(p, bytes, cudaMemoryTypeHost));
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  ENTER(cudaMallocHost);
  const cuda_host::strict::MemoryCall call(current_device(), "cudaMallocHost");
  return report(allocate(p, bytes, cudaMemoryTypeHost));
}
cudaError_t cudaFreeHost(void* p) {
  ENTER(cudaFreeHost);
  const cuda_host::strict::MemoryCall call(current_device(), "cudaFreeHost");
  return report(release(p, cudaMemoryTypeHost));
}
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  ENTER(cudaHostRegister);
  const cuda_host::strict::MemoryCall call(current_device(), "cudaHostRegister");
  REQUIRE(p && bytes > 0, cudaErrorInvalidValue);
  std::lock_guard lock(machine().mutex);
  REQUIRE(!find_block(p), cudaErrorHostMemoryAlreadyRegistered);
  machine().blocks[address(p)] = {bytes, cudaMemoryTypeHost, current_device(), true};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  ENTER(cudaHostUnregister);
  const cuda_host::strict::MemoryCall call(current_device(), "cudaHostUnregister");
  let_device_finish(p);
  std::lock_guard lock(machine().mutex);
  const auto block = machine().blocks.find(address(p));
  REQUIRE(block != machine().blocks.end() && block->second.registered, cudaErrorHostMemoryNotRegistered);
  machine().blocks.erase(block);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  ENTER(cudaPointerGetAttributes);
  REQUIRE(attributes, cudaErrorInvalidValue);
  *attributes = cudaPointerAttributes{};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -2;
  attributes->hostPointer = const_cast<void*>(p);
  std::lock_guard lock(machine().mutex);
  if (const auto* block = find_block(p, 1)) {
    attributes->type = block->second.type;
    attributes->device = block->second.device;
    attributes->devicePointer = const_cast<void*>(p);
    if (block->second.type == cudaMemoryTypeDevice) attributes->hostPointer = nullptr;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  ENTER(cudaMemcpy);
  return report(at_once(copy_rows(dst, bytes, src, bytes, bytes, 1, kind)));
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ENTER(cudaMemcpyAsync);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  return report(copy_rows(dst, bytes, src, bytes, bytes, 1, kind, stream));
}
cudaError_t cudaMemcpy2D(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                         size_t height, cudaMemcpyKind kind) {
  ENTER(cudaMemcpy2D);
  return report(at_once(copy_rows(dst, dst_pitch, src, src_pitch, width, height, kind)));
}
cudaError_t cudaMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  ENTER(cudaMemcpy2DAsync);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  return report(copy_rows(dst, dst_pitch, src, src_pitch, width, height, kind, stream));
}
cudaError_t cudaMemcpyPeerAsync(void* dst, int, const void* src, int, size_t bytes, cudaStream_t stream) {
  ENTER(cudaMemcpyPeerAsync);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  return report(copy_rows(dst, bytes, src, bytes, bytes, 1, cudaMemcpyDeviceToDevice, stream));
}
cudaError_t cudaMemset(void* dst, int value, size_t bytes) {
  ENTER(cudaMemset);
  return report(at_once(set_rows(dst, bytes, value, bytes, 1)));
}
cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  ENTER(cudaMemsetAsync);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  return report(set_rows(dst, bytes, value, bytes, 1, stream));
}
cudaError_t cudaMemset2DAsync(void* dst, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  ENTER(cudaMemset2DAsync);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  return report(set_rows(dst, pitch, value, width, height, stream));
}
