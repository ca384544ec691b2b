// CUDA's runtime, imitated on the host: streams, events, graphs of one stream. See fake.h.
#include <algorithm>
#include <chrono>
#include <vector>

#include "fake_runtime.h"
#include "strict.h"

struct CUgraph_st {
  cuda_host::Graph work;
};
struct CUgraphExec_st {
  cuda_host::Graph work;
};

using namespace cuda_host::runtime;
using cuda_host::Live;

namespace {

bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

/// Ends a stream or an event; false when it is none.
template <class T>
bool destroy(std::set<T*>& known, T* handle, int64_t Live::*count) {
  {
    std::lock_guard lock(machine().mutex);
    if (!known.erase(handle)) return false;
  }
  delete handle;
  cuda_host::count_live(count, -1);
  return true;
}

int device_of(cudaStream_t stream) { return is_default(stream) ? current_device() : stream->device; }

}  // namespace

namespace cuda_host::runtime {

bool known(cudaStream_t stream) {
  std::lock_guard lock(machine().mutex);
  return is_default(stream) || machine().streams.count(stream);
}
bool known(cudaEvent_t event) {
  std::lock_guard lock(machine().mutex);
  return machine().events.count(event);
}
StreamId id_of(cudaStream_t stream) { return is_default(stream) ? 0 : stream->id; }
bool captured(cudaStream_t stream) { return cuda_host::captured(id_of(stream)); }

void run_dry(int device) {
  std::vector<StreamId> streams = {0};
  {
    std::lock_guard lock(machine().mutex);
    for (const CUstream_st* s : machine().streams)
      if (s->device == device) streams.push_back(s->id);
  }
  for (StreamId s : streams) synchronize(*mark(s));
}

}  // namespace cuda_host::runtime

void cuda_host::issue_on(cudaStream_t stream, std::function<void()> work) {
  if (captured(id_of(stream))) return issue(id_of(stream), std::move(work));
  const strict::Launch launch(device_of(stream), id_of(stream));
  issue(id_of(stream), std::move(work));
}
void cuda_host::wait_on(cudaStream_t stream, std::shared_ptr<const Mark> mark) {
  wait(id_of(stream), std::move(mark));
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
  *stream = new CUstream_st{current_device(), std::clamp(priority, kHighestPriority, 0), flags,
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
  REQUIRE(destroy(machine().streams, stream, &Live::streams), cudaErrorInvalidResourceHandle);
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
  cuda_host::issue_on(stream, [=] { function(data); });
  return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ENTER(cudaEventCreateWithFlags);
  REQUIRE(event, cudaErrorInvalidValue);
  *event = new CUevent_st{current_device(), flags, nullptr, false};
  std::lock_guard lock(machine().mutex);
  machine().events.insert(*event);
  cuda_host::count_live(&Live::events, 1);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER(cudaEventDestroy);
  REQUIRE(destroy(machine().events, event, &Live::events), cudaErrorInvalidResourceHandle);
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
  for (const auto& work : graph->work) cuda_host::issue_on(stream, work);
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
