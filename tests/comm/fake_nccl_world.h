// Shared state of the parts of the imitated NCCL: fake_nccl.cpp (its functions), fake_nccl_work.cpp (what
// collectives do), queue_device.cpp (the streams they run on).
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fake_nccl.h"

namespace sherd::test::fake_nccl {

enum class Kind { init, split, window, all_gather, reduce_scatter, all_reduce, broadcast, send, recv };

struct Operation {
  Kind kind{};
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int peer = -1;  // or root
  void* stream = nullptr;
  int color = 0, key = 0;
  ncclComm_t* child = nullptr;
  nccl::Window* window = nullptr;
  ncclComm_t made = nullptr;  // what goes there, from another thread and after the parent is ready
  bool done = false;
  std::function<void()> finished;  // called when it is done or aborted
};
using Op = std::shared_ptr<Operation>;

/// The communicators of one group.
struct Clique {
  std::vector<ncclComm_t> members;
  std::map<int64_t, std::map<int, Op>> rounds;
  std::map<std::pair<int, int>, std::pair<std::deque<Op>, std::deque<Op>>> mail;  // sends, recvs
};

}  // namespace sherd::test::fake_nccl

struct ncclComm {
  sherd::test::fake_nccl::Clique* clique = nullptr;
  int rank = 0, world_rank = 0;
  int elsewhere = -1;  // its number in the world of another process, which does the operations
  int64_t round = 0;
  int operations = -1;  // after the first, by which the backend connects the ranks
  int looks = 0;
  bool in_progress = false;  // what was last said of it, so that nothing but looks and ends are allowed
  bool finalized = false, dead = false, used = false;
  std::vector<sherd::test::fake_nccl::Op> pending;
  std::vector<std::jthread> deliveries;
  std::map<const char*, size_t> windows;
  std::atomic<bool> busy{false};
};

namespace sherd::test::fake_nccl {

struct World {
  std::mutex mutex;
  Faults faults;
  Log log;
  std::list<ncclComm> communicators;
  std::list<Clique> cliques;
  std::map<std::string, Clique*> by_id;
  int64_t ids = 0;
  std::map<const char*, size_t> memory;  // of ncclMemAlloc
  StreamRunner runner = nullptr;
  void (*elsewhere)(ncclComm_t comm, const Op& op) = nullptr;  // for communicators of another process's world
};
World& world();
/// Reports a call that NCCL does not allow. Under the mutex.
void violation(const std::string& text);

ncclComm_t new_communicator(Clique& clique, int rank, int world_rank);
/// Puts an operation where its peers see it, and does what can be done now. Under the mutex.
void post(ncclComm_t comm, const Op& op);
/// Under the mutex.
void finish(Operation& op);
size_t bytes_of(ncclDataType_t type);

/// Windows of all ranks of a clique, once all have asked for them. Under the mutex.
void open_windows(Clique& clique, const std::map<int, Op>& ops);
/// Checks a collective's use of windows. Under the mutex.
void check_windows(const Clique& clique, const std::map<int, Op>& ops);
/// NCCL's functions.
ncclResult_t mem_alloc(void** data, size_t bytes);
ncclResult_t mem_free(void* data);
/// Forgets the windows of a communicator that has ended.
void drop_windows(ncclComm_t comm);

}  // namespace sherd::test::fake_nccl
