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
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/fake_nccl_world.h"
#include "fake_runtime.h"
#include "nccl_processes.h"
#include "strict.h"

namespace {

namespace strict = cuda_host::strict;
namespace processes = cuda_host::processes;
using sherd::test::fake_nccl::bytes_of;

const sherd::nccl::NcclApi& api() {
  static const sherd::nccl::NcclApi& table =
      processes::on() ? processes::api() : sherd::test::fake_nccl::api();
  return table;
}

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "imitated NCCL: %s\n", why.c_str());
  std::abort();
}

ncclResult_t watched(ncclResult_t result) {
  for (const auto& violation : sherd::test::fake_nccl::log().violations) stop(violation);
  return result;
}

thread_local const char* launched = "";  // the function of NCCL that this thread is in

void run_on(void* stream, std::function<void(std::function<void()>)> begin) {
  const auto s = static_cast<cudaStream_t>(stream);
  const auto mark = cuda_host::open_mark();
  cuda_host::issue_on(s, [mark, what = launched, device = s->device, begin = std::move(begin)] {
    strict::began(device, what);
    begin([mark, what, device] {
      strict::ended(device, what);
      cuda_host::reach(*mark);
    });
  });
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

/// The first use of a communicator, or of a pair of its ranks, takes memory.
void connect(ncclComm_t comm, int peer = -1) {
  static std::mutex mutex;
  static std::set<std::tuple<const void*, int, int>> connected;
  {
    std::lock_guard lock(mutex);
    if (!connected.emplace(comm->clique, comm->rank, peer).second) return;
  }
  const strict::MemoryCall call(device_of_rank.at(static_cast<size_t>(comm->world_rank)), "NCCL's first use");
}

/// A call of a collective: checks its operands, and strictly what else the process does.
class Collective {
 public:
  Collective(const char* what, ncclComm_t comm, cudaStream_t stream, ncclDataType_t type,
             std::initializer_list<Operand> operands)
      : call_(stream->device, what, comm->clique, devices_of(comm)) {
    check(what, comm, stream, type, operands);
    if (size_of(comm) > 1) connect(comm);
    if (strict::on() && comm->elsewhere >= 0) processes::issued(comm);
    launched = what;
  }

 private:
  static std::vector<int> devices_of(ncclComm_t comm) {
    std::vector<int> devices;
    for (const ncclComm* member : comm->clique->members)
      if (member != nullptr)  // null: of another process
        devices.push_back(device_of_rank.at(static_cast<size_t>(member->world_rank)));
    return devices;
  }
  const strict::Call call_;
};

thread_local std::vector<std::pair<ncclComm_t, int>> messages;  // communicators and peers of the open group
thread_local int device_of_messages = 0;

void message(const char* what, const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
             cudaStream_t stream) {
  check(what, comm, stream, type, {{data, count}});
  messages.emplace_back(comm, peer);
  device_of_messages = stream->device;
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return api().get_unique_id(id); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  sherd::test::fake_nccl::run_streams_by(run_on);
  device_of_rank.at(static_cast<size_t>(rank)) = cuda_host::runtime::current_device();
  if (size > 1) strict::connect(cuda_host::runtime::current_device());
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
  const Collective call("ncclAllGather", comm, stream, type, {{send, count}, {recv, count * size_of(comm)}});
  return watched(api().all_gather(send, recv, count, type, comm, stream));
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const Collective call("ncclReduceScatter", comm, stream, type,
                        {{send, count * size_of(comm)}, {recv, count}});
  return watched(api().reduce_scatter(send, recv, count, type, op, comm, stream));
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const Collective call("ncclAllReduce", comm, stream, type, {{send, count}, {recv, count}});
  return watched(api().all_reduce(send, recv, count, type, op, comm, stream));
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const Collective call("ncclBroadcast", comm, stream, type, {{recv, count}});
  if (comm->rank == root) check("ncclBroadcast", comm, stream, type, {{send, count}});
  return watched(api().broadcast(send, recv, count, type, root, comm, stream));
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  message("ncclSend", data, count, type, peer, comm, stream);
  return watched(api().send(data, count, type, peer, comm, stream));
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  message("ncclRecv", data, count, type, peer, comm, stream);
  return watched(api().recv(data, count, type, peer, comm, stream));
}
ncclResult_t ncclGroupStart() { return api().group_start(); }
ncclResult_t ncclGroupEnd() {
  const strict::Call call(device_of_messages, "ncclGroupEnd");
  for (const auto& [comm, peer] : std::exchange(messages, {})) connect(comm, peer);
  launched = "ncclGroupEnd";
  return watched(api().group_end());
}
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
