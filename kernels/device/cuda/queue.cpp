#include "queue.h"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>

namespace sherd::cuda {

void check(cublasStatus_t result, const char* what) {
  if (result != CUBLAS_STATUS_SUCCESS)
    throw CudaError(fmt::format("{}: cuBLAS: {}", what, cublasLtGetStatusString(result)));
}

void check(cusolverStatus_t result, const char* what) {
  if (result != CUSOLVER_STATUS_SUCCESS)
    throw CudaError(fmt::format("{}: cuSOLVER status {}", what, static_cast<int>(result)));
}

CudaEvent::CudaEvent(int ordinal, std::shared_ptr<const IndexGuard> guard, int64_t looks)
    : ordinal_(ordinal), guard_(std::move(guard)), looks_(looks) {
  check(cudaSetDevice(ordinal_), "event");
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
}

CudaEvent::~CudaEvent() {
  cudaSetDevice(ordinal_);
  cudaEventDestroy(event_);
}

bool CudaEvent::done() const {
  check(cudaSetDevice(ordinal_), "event");
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // no error to be found by the next launch
    return false;
  }
  check(state, "event");
  return true;
}

void CudaEvent::synchronize() const {
  check(cudaSetDevice(ordinal_), "event");
  check(cudaEventSynchronize(event_), "waiting for the device");
  if (guard_) guard_->poll(looks_);
}

CudaQueue::CudaQueue(const Chip& chip, Allocator& allocator, EventClock& clock, StreamPriority priority)
    : chip_(chip), allocator_(allocator), clock_(clock), scratch_(allocator) {
  check(cudaSetDevice(chip_.ordinal), "stream");
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                     priority == StreamPriority::high ? greatest : least),
        "stream");
  // Streams of collectives and copies have none to look for; their ends then take no call of memory.
  if (priority == StreamPriority::normal) guard_->prepare(stream_);
}

CudaQueue::~CudaQueue() {
  cudaSetDevice(chip_.ordinal);
  attention_plans_.reset();
  if (blas_) cublasLtDestroy(blas_);
  if (solver_.parameters) cusolverDnDestroyParams(solver_.parameters);
  if (solver_.handle) cusolverDnDestroy(solver_.handle);
  allocator_.release(workspace_, true);
  cudaStreamDestroy(stream_);
}

void CudaQueue::start() { check(cudaSetDevice(chip_.ordinal), "stream"); }

void CudaQueue::finish() noexcept {
  cudaStreamSynchronize(
      stream_);  // a failure was reported by the operation that met it, or has no receiver any more
  kept_.clear();
  batch_.clear();
}

std::shared_ptr<NativeEvent> CudaQueue::record() {
  auto event = std::make_shared<CudaEvent>(chip_.ordinal, guard_, guard_->looks());
  check(cudaEventRecord(event->handle(), stream_), "event");
  if (!batch_.empty()) kept_.emplace_back(event, std::exchange(batch_, {}));
  while (!kept_.empty() && kept_.front().first->done()) kept_.pop_front();
  return event;
}

void CudaQueue::push_range(const char* what) noexcept { nvtxRangePushA(what); }

void CudaQueue::pop_range() noexcept { nvtxRangePop(); }

void CudaQueue::wait(const NativeEvent& event) {
  // A process has one kind of native queue, so every native event is CUDA's.
  check(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).handle(), 0),
        "waiting for a stream");
}

void CudaQueue::keep(std::shared_ptr<const void> object) {
  batch_.push_back(std::move(object));
  if (batch_.size() >= kBatch) record();
}

void CudaQueue::after(std::function<void()> f) {
  auto call = std::make_shared<const std::function<void()>>(std::move(f));
  check(cudaLaunchHostFunc(
            stream_, [](void* p) { (*static_cast<const std::function<void()>*>(p))(); },
            const_cast<std::function<void()>*>(call.get())),
        "host function");
  keep(std::move(call));
}

void* CudaQueue::scratch(int64_t bytes) {
  // Work issued before still uses the memory.
  if (!scratch_.has(bytes)) check(cudaStreamSynchronize(stream_), "kernel scratch");
  return scratch_.get(bytes);
}

cublasLtHandle_t CudaQueue::blas() {
  if (!blas_) check(cublasLtCreate(&blas_), "cublasLtCreate");
  return blas_;
}

const Solver& CudaQueue::solver() {
  if (!solver_.handle) check(cusolverDnCreate(&solver_.handle), "cusolverDnCreate");
  if (!solver_.parameters) {  // made last
    check(cusolverDnSetStream(solver_.handle, stream_), "cusolverDnSetStream");
    check(cusolverDnSetDeterministicMode(solver_.handle, CUSOLVER_DETERMINISTIC_RESULTS),
          "cusolverDnSetDeterministicMode");
    check(cusolverDnCreateParams(&solver_.parameters), "cusolverDnCreateParams");
  }
  return solver_;
}

int64_t CudaQueue::dynamic_shared_limit(const char* what, const void* kernel) {
  const auto known = dynamic_shared_.find(kernel);
  if (known != dynamic_shared_.end()) return known->second;
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), what);
  const int64_t most = chip_.shared_bytes - static_cast<int64_t>(attributes.sharedSizeBytes);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)),
        what);
  return dynamic_shared_.emplace(kernel, most).first->second;
}

int64_t dynamic_shared_limit(const ExecutionContext& context, const char* what, const void* kernel) {
  return queue_of(context).dynamic_shared_limit(what, kernel);
}

void* CudaQueue::workspace() {
  if (!workspace_)
    workspace_ = allocator_.allocate(kWorkspaceBytes, MemoryClass::scratch, "cublas workspace", true);
  return workspace_;
}

}  // namespace sherd::cuda
