// CUDA's runtime, imitated on the host: memory, streams, events, devices. See fake.h.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "fake.h"
#include "late.h"

struct CUstream_st {
  int device, priority;
  unsigned flags;
  cuda_host::StreamId id;
};

struct CUevent_st {
  int device;
  unsigned flags;
  std::shared_ptr<const cuda_host::Mark> mark;  // null before it is recorded
  bool captured = false;
};

struct CUgraph_st {
  cuda_host::Graph work;
};
struct CUgraphExec_st {
  cuda_host::Graph work;
};

namespace {

using cuda_host::Live;

constexpr size_t kAlignment = 512;

struct Block {
  size_t bytes;
  cudaMemoryType type;
  int device;
  bool registered;  // cudaHostRegister: not ours to free
};

struct Machine {
  std::mutex mutex;
  std::map<uintptr_t, Block> blocks;
  std::map<int, int64_t> used;  // bytes of each device
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::set<std::pair<int, int>> peers;
};

Machine& machine() {
  static Machine m;
  return m;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int device_count() {
  const char* text = std::getenv("SHERD_HOST_CUDA_DEVICES");
  return text ? std::atoi(text) : 8;
}

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

/// The block that [p, p + bytes) lies in, or null. Under the mutex.
const std::pair<const uintptr_t, Block>* find_block(const void* p, size_t bytes = 0) {
  auto& blocks = machine().blocks;
  auto next = blocks.upper_bound(address(p));
  if (next == blocks.begin()) return nullptr;
  --next;
  return address(p) + bytes <= next->first + std::max<size_t>(next->second.bytes, 1) ? &*next : nullptr;
}

/// Streams and events must be alive, null is the default stream.
bool known(cudaStream_t stream) {
  std::lock_guard lock(machine().mutex);
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ||
         machine().streams.count(stream);
}
bool known(cudaEvent_t event) {
  std::lock_guard lock(machine().mutex);
  return machine().events.count(event);
}
int device_of(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ? current_device
                                                                                          : stream->device;
}

cuda_host::StreamId id_of(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ? 0 : stream->id;
}
/// What the host may not do with a stream while it is captured.
bool captured(cudaStream_t stream) { return cuda_host::captured(id_of(stream)); }

/// All work there is on all streams, as freeing memory waits for it.
void run_dry() { cuda_host::synchronize_all(); }

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
  cuda_host::issue(id_of(stream), [=] {
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
  cuda_host::issue(id_of(stream), [=] {
    for (size_t r = 0; r < height; ++r) std::memset(static_cast<char*>(dst) + r * pitch, value, width);
  });
  return cudaSuccess;
}

/// What the default stream was given is done when the call returns.
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
                 m.used[current_device] + static_cast<int64_t>(bytes) > cuda_host::kDeviceBytes))
    return cudaErrorMemoryAllocation;
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!memory) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xff, bytes);
  m.blocks[address(memory)] = {bytes, type, current_device, false};
  if (device) {
    m.used[current_device] += static_cast<int64_t>(bytes);
    cuda_host::count_live(&Live::device_blocks, 1);
    cuda_host::count_live(&Live::device_bytes, static_cast<int64_t>(bytes));
  } else {
    cuda_host::count_live(&Live::host_blocks, 1);
  }
  *p = memory;
  return cudaSuccess;
}

cudaError_t release(void* p, cudaMemoryType type) {
  if (!p) return cudaSuccess;
  run_dry();
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

struct Name {
  cudaError_t error;
  const char *name, *text;
};
constexpr Name kNames[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

constexpr int kMultiprocessors = 132;
constexpr int kMajor = 8, kMinor = 0;  // so that nothing is chosen that only newer chips have
constexpr int kSharedBytes = 48 * 1024, kMostSharedBytes = 227 * 1024,
              kMultiprocessorSharedBytes = 228 * 1024;
constexpr int kHighestPriority = -5;

}  // namespace

// A function's first line: counts the call, fails if a test says so, or if there is no device.
#define ENTER(function)                                                                            \
  if (const int code = cuda_host::enter(#function)) return report(static_cast<cudaError_t>(code)); \
  if (device_count() == 0) return report(cudaErrorNoDevice)
#define REQUIRE(condition, error) \
  if (!(condition)) return report(error)

void cuda_host::issue_on(cudaStream_t stream, std::function<void()> work) {
  issue(id_of(stream), std::move(work));
}

// ---- devices and errors

cudaError_t cudaGetDeviceCount(int* count) {
  if (const int code = cuda_host::enter("cudaGetDeviceCount")) return report(static_cast<cudaError_t>(code));
  *count = device_count();
  return report(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  ENTER(cudaSetDevice);
  REQUIRE(device >= 0 && device < device_count(), cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  ENTER(cudaInitDevice);
  return report(device >= 0 && device < device_count() ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  ENTER(cudaGetDevice);
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned) {
  ENTER(cudaSetDeviceFlags);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ENTER(cudaDeviceSynchronize);
  run_dry();
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  ENTER(cudaDeviceReset);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = device_count() == 0 ? 0 : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  ENTER(cudaDeviceGetAttribute);
  REQUIRE(value, cudaErrorInvalidValue);
  REQUIRE(device >= 0 && device < device_count(), cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedBytes;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMostSharedBytes;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kMultiprocessorSharedBytes;
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = 32;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = 65536;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 0x7fffffff;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = 65535;
      break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = 1024;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = 64;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      break;
    case cudaDevAttrClockRate:
      *value = 1980000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 3201000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 6144;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = 3;
      break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrCanMapHostMemory:
      *value = 1;
      break;
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrIntegrated:
    case cudaDevAttrComputeMode:
      *value = 0;
      break;
    default:
      return report(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  ENTER(cudaGetDeviceProperties);
  REQUIRE(p, cudaErrorInvalidValue);
  REQUIRE(device >= 0 && device < device_count(), cudaErrorInvalidDevice);
  *p = cudaDeviceProp{};
  std::snprintf(p->name, sizeof p->name, "Emulated GPU");
  p->totalGlobalMem = static_cast<size_t>(cuda_host::kDeviceBytes);
  p->sharedMemPerBlock = kSharedBytes;
  p->sharedMemPerBlockOptin = kMostSharedBytes;
  p->sharedMemPerMultiprocessor = kMultiprocessorSharedBytes;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = kMajor;
  p->minor = kMinor;
  p->multiProcessorCount = kMultiprocessors;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 6144;
  p->asyncEngineCount = 3;
  p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = p->canMapHostMemory = 1;
  p->pciBusID = device + 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  ENTER(cudaDeviceGetPCIBusId);
  REQUIRE(device >= 0 && device < device_count(), cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0",
                static_cast<unsigned>(device + 1) & 255u);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  ENTER(cudaMemGetInfo);
  std::lock_guard lock(machine().mutex);
  *total = static_cast<size_t>(cuda_host::kDeviceBytes);
  *available = static_cast<size_t>(cuda_host::kDeviceBytes - machine().used[current_device]);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const int code = cuda_host::enter("cudaGetLastError");
  const cudaError_t last = std::exchange(last_error, cudaSuccess);
  return code ? static_cast<cudaError_t>(code) : last;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  for (const Name& n : kNames)
    if (n.error == error) return n.name;
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  for (const Name& n : kNames)
    if (n.error == error) return n.text;
  return "unrecognized error code";
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER(cudaDeviceCanAccessPeer);
  REQUIRE(device >= 0 && device < device_count() && peer >= 0 && peer < device_count(),
          cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  ENTER(cudaDeviceEnablePeerAccess);
  REQUIRE(flags == 0, cudaErrorInvalidValue);
  REQUIRE(peer >= 0 && peer < device_count() && peer != current_device, cudaErrorInvalidDevice);
  std::lock_guard lock(machine().mutex);
  return report(machine().peers.emplace(current_device, peer).second ? cudaSuccess
                                                                     : cudaErrorPeerAccessAlreadyEnabled);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  ENTER(cudaDeviceDisablePeerAccess);
  std::lock_guard lock(machine().mutex);
  return report(machine().peers.erase({current_device, peer}) ? cudaSuccess : cudaErrorPeerAccessNotEnabled);
}

// ---- memory

cudaError_t cudaMalloc(void** p, size_t bytes) {
  ENTER(cudaMalloc);
  return report(allocate(p, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFree(void* p) {
  ENTER(cudaFree);
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
  return report(allocate(p, bytes, cudaMemoryTypeHost));
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  ENTER(cudaMallocHost);
  return report(allocate(p, bytes, cudaMemoryTypeHost));
}
cudaError_t cudaFreeHost(void* p) {
  ENTER(cudaFreeHost);
  return report(release(p, cudaMemoryTypeHost));
}
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  ENTER(cudaHostRegister);
  REQUIRE(p && bytes > 0, cudaErrorInvalidValue);
  std::lock_guard lock(machine().mutex);
  REQUIRE(!find_block(p), cudaErrorHostMemoryAlreadyRegistered);
  machine().blocks[address(p)] = {bytes, cudaMemoryTypeHost, current_device, true};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  ENTER(cudaHostUnregister);
  run_dry();
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

// ---- streams

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  ENTER(cudaDeviceGetStreamPriorityRange);
  if (least) *least = 0;
  if (greatest) *greatest = kHighestPriority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  ENTER(cudaStreamCreateWithPriority);
  REQUIRE(stream, cudaErrorInvalidValue);
  *stream = new CUstream_st{current_device, std::clamp(priority, kHighestPriority, 0), flags,
                            cuda_host::new_stream()};
  std::lock_guard lock(machine().mutex);
  machine().streams.insert(*stream);
  cuda_host::count_live(&Live::streams, 1);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER(cudaStreamDestroy);
  {
    std::lock_guard lock(machine().mutex);
    REQUIRE(machine().streams.erase(stream), cudaErrorInvalidResourceHandle);
  }
  delete stream;
  cuda_host::count_live(&Live::streams, -1);
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  ENTER(cudaStreamGetPriority);
  REQUIRE(stream && known(stream), cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  ENTER(cudaStreamGetFlags);
  REQUIRE(stream && known(stream), cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER(cudaStreamSynchronize);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  REQUIRE(!captured(stream), cudaErrorStreamCaptureUnsupported);
  cuda_host::synchronize(*cuda_host::mark(id_of(stream)));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER(cudaStreamQuery);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  REQUIRE(!captured(stream), cudaErrorStreamCaptureUnsupported);
  return cuda_host::reached(*cuda_host::mark(id_of(stream))) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER(cudaStreamWaitEvent);
  REQUIRE(known(stream) && known(event), cudaErrorInvalidResourceHandle);
  REQUIRE(captured(stream) || !event->captured, cudaErrorCapturedEvent);
  std::shared_ptr<const cuda_host::Mark> mark;
  {
    std::lock_guard lock(machine().mutex);
    mark = event->mark;
  }
  if (mark) cuda_host::wait(id_of(stream), std::move(mark));
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  ENTER(cudaLaunchHostFunc);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  cuda_host::issue(id_of(stream), [=] { function(data); });
  return cudaSuccess;
}

// ---- graphs: of one stream

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  ENTER(cudaStreamBeginCapture);
  REQUIRE(stream && known(stream) && !captured(stream), cudaErrorIllegalState);
  cuda_host::begin_capture(id_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  ENTER(cudaStreamEndCapture);
  REQUIRE(stream && known(stream) && captured(stream), cudaErrorIllegalState);
  *graph = new CUgraph_st{cuda_host::end_capture(id_of(stream))};
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  ENTER(cudaStreamIsCapturing);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  *status = captured(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  ENTER(cudaGraphInstantiate);
  *made = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  ENTER(cudaGraphLaunch);
  REQUIRE(known(stream), cudaErrorInvalidResourceHandle);
  for (const auto& work : graph->work) cuda_host::issue(id_of(stream), work);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  ENTER(cudaGraphExecDestroy);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  ENTER(cudaGraphDestroy);
  delete graph;
  return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ENTER(cudaEventCreateWithFlags);
  REQUIRE(event, cudaErrorInvalidValue);
  *event = new CUevent_st{current_device, flags, nullptr, false};
  std::lock_guard lock(machine().mutex);
  machine().events.insert(*event);
  cuda_host::count_live(&Live::events, 1);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER(cudaEventDestroy);
  {
    std::lock_guard lock(machine().mutex);
    REQUIRE(machine().events.erase(event), cudaErrorInvalidResourceHandle);
  }
  delete event;
  cuda_host::count_live(&Live::events, -1);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER(cudaEventRecord);
  REQUIRE(known(event) && known(stream) && event->device == device_of(stream),
          cudaErrorInvalidResourceHandle);
  const bool in_graph = captured(stream);
  auto mark = cuda_host::mark(id_of(stream));
  std::lock_guard lock(machine().mutex);
  event->mark = std::move(mark);
  event->captured = in_graph;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER(cudaEventQuery);
  REQUIRE(known(event), cudaErrorInvalidResourceHandle);
  std::lock_guard lock(machine().mutex);
  REQUIRE(!event->captured, cudaErrorCapturedEvent);
  return !event->mark || cuda_host::reached(*event->mark) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER(cudaEventSynchronize);
  REQUIRE(known(event), cudaErrorInvalidResourceHandle);
  std::shared_ptr<const cuda_host::Mark> mark;
  {
    std::lock_guard lock(machine().mutex);
    REQUIRE(!event->captured, cudaErrorCapturedEvent);
    mark = event->mark;
  }
  if (mark) cuda_host::synchronize(*mark);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  ENTER(cudaEventElapsedTime);
  REQUIRE(known(begin) && known(end), cudaErrorInvalidResourceHandle);
  std::lock_guard lock(machine().mutex);
  REQUIRE(begin->mark && end->mark && !((begin->flags | end->flags) & cudaEventDisableTiming),
          cudaErrorInvalidResourceHandle);
  if (!cuda_host::reached(*begin->mark) || !cuda_host::reached(*end->mark)) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(cuda_host::time_of(*end->mark) -
                                                           cuda_host::time_of(*begin->mark))
                      .count();
  return cudaSuccess;
}

// ---- kernels

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  ENTER(cudaFuncSetAttribute);
  REQUIRE(function, cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize)
    REQUIRE(value >= 0 && value <= kMostSharedBytes, cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  ENTER(cudaFuncGetAttributes);
  REQUIRE(attributes && function, cudaErrorInvalidDeviceFunction);
  *attributes = cudaFuncAttributes{};
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          size_t shared_bytes) {
  ENTER(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
  REQUIRE(blocks && function && threads > 0, cudaErrorInvalidValue);
  const size_t by_memory = kMultiprocessorSharedBytes / (shared_bytes + 1024);
  *blocks = std::min({32, 2048 / threads, static_cast<int>(by_memory)});
  return cudaSuccess;
}
