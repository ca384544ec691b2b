// An NCCL for threads of one process over host memory, with faults on demand. It reduces in rank order and
// rounds 16-bit sums at every step, as NCCL may.
//
// Operations on the null stream are in progress until they are done; on any other "stream" they are issued at
// once and done when all ranks have come, which the events of a queue device tell. A split says success while
// the parent is in progress, and fills in the child from another thread after that. A communicator in
// progress takes no further work.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/nccl/detail/api.h>
#include <sherd/kernels/device/device.h>

namespace sherd::test::fake_nccl {

const nccl::NcclApi& api();

struct Faults {
  bool id_fails = false;
  int init_fails_on = -1;  // world rank
  int silent = -1;         // the world rank whose operations never take part
  int error_on = -1;       // the world rank whose communicators report an error ...
  int error_after = 0;     // ... after so many operations
  ncclResult_t error = ncclRemoteError;
  bool at_once = true;  // else operations on streams, too, are in progress until they are done
  int looks = 1;        // how often each operation is "in progress" at least
  int version = 22809;  // as ncclGetVersion says it
  bool windows = true;  // else NCCL makes none, and says success
  bool memory = true;   // else ncclMemAlloc has none
};

struct Log {
  int made = 0, aborted = 0, finalized = 0, destroyed = 0, registered = 0, deregistered = 0;
  int shared = 0;             // of the communicators that were made, those of more than one rank
  int used = 0;               // communicators that have had a collective or a message and have not ended
  int blocks = 0, freed = 0;  // of ncclMemAlloc
  int windows = 0, windows_closed = 0;  // of all communicators
  int in_windows = 0, outside = 0;      // collectives of more than a rank, by where their memory is
  int errors = 0;                       // how often Faults::error was returned
  std::vector<std::string> violations;  // of what NCCL asks of its callers
};

/// Forgets everything that was. Before each test.
void reset(const Faults& faults = {});
Log log();

/// Runs operations on a library's streams: does an operation in the stream's order, which calls `done` at its
/// end, and makes the stream (or the caller) wait for that. Null: operations are posted by the call. reset()
/// leaves it as it is.
using StreamRunner = void (*)(void* stream, std::function<void(std::function<void()> done)> begin);
void run_streams_by(StreamRunner runner);

/// Bytes that each communicator takes of every device with a limit, and bytes of its first call.
inline constexpr int64_t kCommunicatorBytes = int64_t{8} << 20, kFirstCallBytes = int64_t{5} << 20;

/// A CPU device whose streams have native queues, and whose reductions use scratch memory of their own. Its
/// memory has so many blocks at most, when that is above 0, and so many bytes when `limit` is.
std::shared_ptr<Device> make_queue_device(const std::string& label, int blocks = 0, int64_t limit = 0);

}  // namespace sherd::test::fake_nccl
