#include "strict.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <utility>

namespace cuda_host::strict {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration limit() {
  static const int64_t seconds = [] {
    const char* const text = std::getenv("SHERD_HOST_CUDA_STRICT");
    return text ? std::strtol(text, nullptr, 10) : 0;
  }();
  return std::chrono::seconds(seconds);
}

/// One thread of the process at a time; its owner says what it does meanwhile.
struct Turn {
  std::timed_mutex mutex;
  std::string owner;  // under Driver::mutex
};

/// Operations of a device's communicators so far, by communicator.
using Counts = std::map<const void*, int64_t>;

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;
  Turn process;
  std::map<int, Turn> devices;
  std::map<int, std::multiset<std::string>> running;  // collectives, by device
  std::set<int> connected;
  std::set<std::pair<int, const void*>> loaded;
  // Calls of NCCL.
  std::map<int, std::pair<std::thread::id, std::string>> inside;
  std::map<int, Counts> counts;
  struct First {
    int device;
    Counts before;
  };
  std::map<std::pair<const void*, int64_t>, First> first;  // by communicator and number of the operation
  std::map<const void*, std::pair<std::string, std::vector<int>>> communicators;
};

Driver& driver() {
  static Driver d;
  return d;
}

/// Below zero: a rank of several processes.
std::string gpu(int device) {
  return device >= 0 ? "GPU " + std::to_string(device) : "rank " + std::to_string(-1 - device);
}

Turn& turn_of(int device) {
  std::lock_guard lock(driver().mutex);
  return driver().devices[device];
}

std::unique_lock<std::timed_mutex> take(Turn& turn, const std::string& what) {
  std::unique_lock held(turn.mutex, limit());
  std::unique_lock lock(driver().mutex);
  if (!held) {
    const std::string owner = turn.owner;
    lock.unlock();
    stop(what + " waits for " + owner);
  }
  turn.owner = what;
  return held;
}

/// Returns what runs on the GPUs that are connected with this one. Under the mutex.
std::string running_beside(int device) {
  Driver& d = driver();
  if (d.connected.contains(device))
    for (const int peer : d.connected)
      if (const auto& running = d.running[peer]; peer != device && !running.empty()) return *running.begin();
  return "";
}

const std::string kFirstLaunch = "the first launch of a kernel";

/// Memory calls while a collective runs on a GPU of the process; the process reports them at its end where the environment asks.
struct Counted {
  const bool told = std::getenv("SHERD_HOST_CUDA_COUNT") != nullptr;
  int64_t calls = 0;
  std::string first;
  ~Counted() {
    if (told && calls > 0)
      std::fprintf(stderr, "imitated driver: %lld memory calls while a collective ran, the first: %s\n",
                   static_cast<long long>(calls), first.c_str());
  }
};
/// Under the mutex. First launches are not counted: a process of one GPU, with nothing but its own collectives to wait for, loads
/// kernels in its first step.
void count(const std::string& name) {
  static Counted counted;
  if (name.starts_with(kFirstLaunch)) return;
  for (const auto& [device, running] : driver().running)
    if (!running.empty() && counted.calls++ == 0) counted.first = name + ", beside " + *running.begin();
}

}  // namespace

bool on() {
  static const bool answer = limit() > Clock::duration::zero();
  return answer;
}

void stop(const std::string& why) {
  std::fprintf(stderr, "imitated driver: %s\n", why.c_str());
  std::abort();
}

MemoryCall::MemoryCall(int device, const std::string& what) {
  if (!on()) return;
  Driver& d = driver();
  const std::string name = what + " on " + gpu(device);
  held_ = take(turn_of(device), name);
  std::unique_lock lock(d.mutex);
  count(name);
  if (d.changed.wait_for(lock, limit(), [&] { return running_beside(device).empty(); })) return;
  const std::string other = running_beside(device);
  lock.unlock();
  stop(name + " waits for " + other + ", which has not ended");
}

void load_kernel(int device, const void* kernel) {
  if (!on()) return;
  {
    std::lock_guard lock(driver().mutex);
    if (!driver().loaded.emplace(device, kernel).second) return;
  }
  const MemoryCall call(device, kFirstLaunch);
}

Launch::Launch(int device, StreamId stream) {
  if (!on()) return;
  const std::string name = "a launch on " + gpu(device);
  device_ = take(turn_of(device), name);
  process_ = take(driver().process, name);
  const auto begin = Clock::now();
  while (queued(stream) >= kMostLaunches) {
    if (Clock::now() - begin > limit())
      stop(name + " waits for room in a stream of " + std::to_string(kMostLaunches) + " launches");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void connect(int device) {
  std::lock_guard lock(driver().mutex);
  driver().connected.insert(device);
}

void began(int device, const std::string& what) {
  std::lock_guard lock(driver().mutex);
  driver().running[device].insert(what + " on " + gpu(device));
}

void ended(int device, const std::string& what) {
  {
    std::lock_guard lock(driver().mutex);
    auto& running = driver().running[device];
    running.erase(running.find(what + " on " + gpu(device)));
  }
  driver().changed.notify_all();
}

Call::Call(int device, const std::string& what, const void* clique, const std::vector<int>& members)
    : device_(device) {
  if (!on()) return;
  Driver& d = driver();
  std::unique_lock lock(d.mutex);
  const auto [at, alone] = d.inside.try_emplace(device, std::this_thread::get_id(), what);
  if (!alone) {
    const std::string other = at->second.second;
    lock.unlock();
    stop(what + " and " + other + " are issued on " + gpu(device) + " at once, by two threads");
  }
  if (clique == nullptr) return;
  d.communicators.try_emplace(clique, what, members);
  Counts& counts = d.counts[device];
  const int64_t number = counts[clique]++;
  const auto [first, is_first] = d.first.try_emplace({clique, number}, Driver::First{device, counts});
  if (!is_first)
    for (const auto& [other, communicator] : d.communicators) {
      const auto& [name, devices] = communicator;
      const auto has = [&devices](int which) { return std::ranges::find(devices, which) != devices.end(); };
      if (other == clique || !has(device) || !has(first->second.device)) continue;
      const int64_t here = counts[other], there = first->second.before[other];
      if (here == there) continue;
      const std::string why = what + " follows " + std::to_string(here) +
                              " operations of the communicator of " + name + " on " + gpu(device) + ", " +
                              std::to_string(there) + " on " + gpu(first->second.device);
      lock.unlock();
      stop(why);
    }
}

Call::~Call() {
  if (!on()) return;
  std::this_thread::yield();
  std::lock_guard lock(driver().mutex);
  driver().inside.erase(device_);
}

}  // namespace cuda_host::strict
