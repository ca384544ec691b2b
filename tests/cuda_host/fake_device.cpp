// CUDA's runtime, imitated on the host: devices, errors, what is asked of kernels. See fake.h.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "fake_runtime.h"
#include "strict.h"

namespace {

thread_local cudaError_t last_error = cudaSuccess;

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

/// An H100's number unless the environment sets another.
int multiprocessors() {
  const char* text = std::getenv("SHERD_HOST_CUDA_MULTIPROCESSORS");
  return text ? std::atoi(text) : 132;
}
/// 80 unless the environment says otherwise, so that nothing is chosen that only newer chips have.
int capability() {
  const char* text = std::getenv("SHERD_HOST_CUDA_CAPABILITY");
  return text ? std::atoi(text) : 80;
}
constexpr int kSharedBytes = 48 * 1024, kMultiprocessorSharedBytes = 228 * 1024;
/// Static and dynamic together, of a block of a kernel that was allowed more than kSharedBytes: as on the H200, and on
/// chips of 12.0 as on those.
int most_shared_bytes() { return (capability() / 10 == 12 ? 99 : 227) * 1024; }
// Every kernel's static shared memory: more than that of any kernel that also takes most of the dynamic.
constexpr int kStaticSharedBytes = 2 * 1024;

}  // namespace

namespace cuda_host::runtime {

Machine& machine() {
  static Machine m;
  return m;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int device_count() {
  const char* text = std::getenv("SHERD_HOST_CUDA_DEVICES");
  return text ? std::atoi(text) : 8;
}

}  // namespace cuda_host::runtime

using namespace cuda_host::runtime;

// ---- devices and errors

cudaError_t cudaGetDeviceCount(int* count) {
  if (const int code = cuda_host::enter("cudaGetDeviceCount")) return report(static_cast<cudaError_t>(code));
  *count = device_count();
  return report(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  ENTER(cudaSetDevice);
  REQUIRE(device >= 0 && device < device_count(), cudaErrorInvalidDevice);
  current_device() = device;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  ENTER(cudaInitDevice);
  return report(device >= 0 && device < device_count() ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  ENTER(cudaGetDevice);
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned) {
  ENTER(cudaSetDeviceFlags);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ENTER(cudaDeviceSynchronize);
  run_dry(current_device());
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
      *value = multiprocessors();
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = capability() / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = capability() % 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedBytes;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = most_shared_bytes();
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
  p->sharedMemPerBlockOptin = static_cast<size_t>(most_shared_bytes());
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
  p->major = capability() / 10;
  p->minor = capability() % 10;
  p->multiProcessorCount = multiprocessors();
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
  *available = static_cast<size_t>(cuda_host::kDeviceBytes - machine().used[current_device()]);
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
  REQUIRE(peer >= 0 && peer < device_count() && peer != current_device(), cudaErrorInvalidDevice);
  std::lock_guard lock(machine().mutex);
  return report(machine().peers.emplace(current_device(), peer).second ? cudaSuccess
                                                                       : cudaErrorPeerAccessAlreadyEnabled);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  ENTER(cudaDeviceDisablePeerAccess);
  std::lock_guard lock(machine().mutex);
  return report(machine().peers.erase({current_device(), peer}) ? cudaSuccess
                                                                : cudaErrorPeerAccessNotEnabled);
}

// ---- kernels

int cuda_host::check_shared_memory(const void* kernel, size_t dynamic_bytes) {
  strict::load_kernel(current_device(), kernel);
  if (dynamic_bytes + kStaticSharedBytes <= kSharedBytes) return cudaSuccess;
  std::lock_guard lock(machine().mutex);
  const auto allowed = machine().dynamic_shared.find({current_device(), kernel});
  REQUIRE(allowed != machine().dynamic_shared.end() && dynamic_bytes <= static_cast<size_t>(allowed->second),
          cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  ENTER(cudaFuncSetAttribute);
  REQUIRE(function, cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    REQUIRE(value >= 0 && value + kStaticSharedBytes <= most_shared_bytes(), cudaErrorInvalidValue);
    std::lock_guard lock(machine().mutex);
    machine().dynamic_shared[{current_device(), function}] = value;
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  ENTER(cudaFuncGetAttributes);
  REQUIRE(attributes && function, cudaErrorInvalidDeviceFunction);
  *attributes = cudaFuncAttributes{};
  attributes->sharedSizeBytes = kStaticSharedBytes;
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
