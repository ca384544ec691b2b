// libnccl's functions, by the imitated NCCL of tests/comm on the streams of the imitated GPU. Ends the
// process when a caller does what NCCL or CUDA does not allow: operands that are not wholly in the memory of
// the communicator's GPU, streams of another one, and what comm/fake_nccl.h has.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>

#include "comm/fake_nccl_world.h"
#include "fake_runtime.h"

namespace {

using sherd::test::fake_nccl::api;
using sherd::test::fake_nccl::bytes_of;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "imitated NCCL: %s\n", why.c_str());
  std::abort();
}

ncclResult_t watched(ncclResult_t result) {
  for (const auto& violation : sherd::test::fake_nccl::log().violations) stop(violation);
  return result;
}

void run_on(void* stream, std::function<void(std::function<void()>)> begin) {
  const auto s = static_cast<cudaStream_t>(stream);
  const auto mark = cuda_host::open_mark();
  cuda_host::issue_on(s, [mark, begin = std::move(begin)] { begin([mark] { cuda_host::reach(*mark); }); });
  if (cuda_host::late())
    cuda_host::wait_on(s, mark);
  else
    cuda_host::synchronize(*mark);
}

// A rank's communicators are all on the GPU that was selected when the first was made.
std::array<std::atomic<int>, 64> device_of_rank;

/// The GPU whose memory has all of it, or -1.
int device_with(const void* p, size_t bytes) {
  auto& machine = cuda_host::runtime::machine();
  std::lock_guard lock(machine.mutex);
  const auto begin = reinterpret_cast<uintptr_t>(p);
  const auto next = machine.blocks.upper_bound(begin);
  if (next == machine.blocks.begin()) return -1;
  const auto& [block, what] = *std::prev(next);
  return what.type == cudaMemoryTypeDevice && begin + bytes <= block + what.bytes ? what.device : -1;
}

struct Operand {
  const void* data;
  size_t count;
};
void check(const char* what, ncclComm_t comm, cudaStream_t stream, ncclDataType_t type,
           std::initializer_list<Operand> operands) {
  const int device = device_of_rank.at(static_cast<size_t>(comm->world_rank));
  if (!stream || stream->device != device)
    stop(std::string(what) + ": not a stream of the communicator's GPU");
  for (const Operand& o : operands)
    if (device_with(o.data, o.count * bytes_of(type)) != device)
      stop(std::string(what) + ": an operand is not in the memory of the communicator's GPU");
}
size_t size_of(ncclComm_t comm) { return comm->clique->members.size(); }

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  sherd::test::fake_nccl::run_streams_by(run_on);
  return api().get_unique_id(id);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  device_of_rank.at(static_cast<size_t>(rank)) = cuda_host::runtime::current_device();
  return watched(api().comm_init_rank_config(comm, size, id, rank, config));
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return watched(api().comm_split(comm, color, key, child, config));
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return watched(api().comm_get_async_error(comm, state));
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return api().comm_abort(comm); }
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return watched(api().comm_finalize(comm)); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return watched(api().comm_destroy(comm)); }
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  check("ncclAllGather", comm, stream, type, {{send, count}, {recv, count * size_of(comm)}});
  return watched(api().all_gather(send, recv, count, type, comm, stream));
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  check("ncclReduceScatter", comm, stream, type, {{send, count * size_of(comm)}, {recv, count}});
  return watched(api().reduce_scatter(send, recv, count, type, op, comm, stream));
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  check("ncclAllReduce", comm, stream, type, {{send, count}, {recv, count}});
  return watched(api().all_reduce(send, recv, count, type, op, comm, stream));
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  check("ncclBroadcast", comm, stream, type, {{recv, count}});
  if (comm->rank == root) check("ncclBroadcast", comm, stream, type, {{send, count}});
  return watched(api().broadcast(send, recv, count, type, root, comm, stream));
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  check("ncclSend", comm, stream, type, {{data, count}});
  return watched(api().send(data, count, type, peer, comm, stream));
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  check("ncclRecv", comm, stream, type, {{data, count}});
  return watched(api().recv(data, count, type, peer, comm, stream));
}
ncclResult_t ncclGroupStart() { return api().group_start(); }
ncclResult_t ncclGroupEnd() { return watched(api().group_end()); }
const char* ncclGetErrorString(ncclResult_t result) { return api().get_error_string(result); }
const char* ncclGetLastError(ncclComm_t comm) { return api().get_last_error(comm); }
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  return watched(api().comm_register(comm, data, bytes, handle));
}
ncclResult_t ncclGetVersion(int* version) { return api().get_version(version); }
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  const ncclResult_t result = watched(api().mem_alloc(data, bytes));
  if (result != ncclSuccess) return result;
  auto& machine = cuda_host::runtime::machine();
  std::lock_guard lock(machine.mutex);
  machine.blocks[reinterpret_cast<uintptr_t>(*data)] = {bytes, cudaMemoryTypeDevice,
                                                        cuda_host::runtime::current_device(), false};
  return result;
}
ncclResult_t ncclMemFree(void* data) {
  {
    auto& machine = cuda_host::runtime::machine();
    std::lock_guard lock(machine.mutex);
    machine.blocks.erase(reinterpret_cast<uintptr_t>(data));
  }
  return watched(api().mem_free(data));
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, size_t bytes, sherd::nccl::Window* window,
                                    int flags) {
  if (device_with(data, bytes) != device_of_rank.at(static_cast<size_t>(comm->world_rank)))
    stop("ncclCommWindowRegister: memory of another GPU than the communicator's");
  return watched(api().window_register(comm, data, bytes, window, flags));
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, sherd::nccl::Window window) {
  return watched(api().window_deregister(comm, window));
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return watched(api().comm_deregister(comm, handle));
}
