#include "emulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fiber.h"

namespace cuda_host {
namespace {

constexpr unsigned kLanes = 32;
constexpr size_t kGuardBytes = 128;  // behind dynamic shared memory
constexpr unsigned char kGuard = 0xb5;
constexpr uint32_t kSharedBegin = 128;  // in the space of shared memory's addresses

const char* name_of(Warp operation) {
  switch (operation) {
    case Warp::sync:
      return "__syncwarp";
    case Warp::shuffle:
      return "a shuffle";
    case Warp::ballot:
      return "a vote";
    case Warp::match:
      return "a match";
    default:
      return "a reduction over a warp";
  }
}

std::string name_of(const Place& place) {
  const std::string path = place.file_name();
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), place.line());
}

/// 32 threads. Bit i of a mask is lane i.
struct WarpState {
  unsigned exists = 0;
  unsigned ready = 0;      // to be started or to continue
  unsigned unstarted = 0;  // of those ready
  unsigned at_barrier = 0;
  unsigned at_operation = 0;
  unsigned polling = 0;  // in wait_until()
  unsigned done = 0;
  struct Lane {
    Fiber* fiber = nullptr;
    uint64_t value = 0;  // given to the operation, then its result
    unsigned mask = 0, source = 0;
    Warp operation = Warp::sync;
    bool (*ready)(const void*) = nullptr;
    const void* what = nullptr;
    Place place;
  };
  Lane lanes[kLanes];
};

/// Runs blocks on one OS thread; kept from one kernel to the next for its fibers.
class Engine {
 public:
  void run(const char* what, dim3 blocks, dim3 threads, size_t shared_bytes, void (*call)(const void*),
           const void* body);
  void* dynamic_shared() {
    if (shared_bytes_ == 0) misuse("uses dynamic shared memory, but was started with none");
    return shared_;
  }
  int block_barrier(Vote vote, bool predicate, const Place& place);
  uint64_t warp_operation(Warp operation, unsigned mask, uint64_t value, unsigned source, const Place& place);
  unsigned lane() const { return lane_; }
  void wait_until(bool (*ready)(const void*), const void* what, const Place& place);
  void later(std::function<void()> work) { later_.push_back(std::move(work)); }
  uint64_t block_number() const { return block_number_; }
  uint32_t shared_address(const void* p) const;
  unsigned char* shared_at(uint32_t address, size_t bytes) const;
  [[noreturn]] void misuse(const std::string& what) const;

 private:
  void prepare(dim3 threads);
  void run_block();
  void run_warp(unsigned number);
  void release_barrier();
  bool wake();
  bool do_later();
  void finish_operation(WarpState& warp, unsigned mask);
  void serve();  // what each fiber does
  bool take_unstarted();
  unsigned first_of(unsigned lanes) const {
    return static_cast<unsigned>(descending_ ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes));
  }
  void become(unsigned lane) {
    lane_ = lane;
    threadIdx = indices_[warp_number_ * kLanes + lane];
  }
  void suspend();
  Fiber* idle_fiber();
  void forget_suspended();
  void check_shared_memory() const;
  std::string who_waits_where() const;

  const char* what_ = nullptr;
  void (*call_)(const void*) = nullptr;
  const void* body_ = nullptr;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::vector<uint3> indices_;
  std::vector<WarpState> warps_;
  WarpState* warp_ = nullptr;  // of the running thread
  unsigned warp_number_ = 0, lane_ = 0;
  bool descending_ = false;
  unsigned live_ = 0;
  uint64_t block_number_ = 0;
  std::deque<std::function<void()>> later_;
  std::exception_ptr failure_;

  // The block's barrier.
  unsigned arrived_ = 0, voted_ = 0;
  int verdict_ = 0;
  Vote vote_ = Vote::none;
  Place place_;

  std::vector<unsigned char> shared_memory_;
  unsigned char* shared_ = nullptr;
  size_t shared_bytes_ = 0;
};

thread_local Engine engine;

void Engine::misuse(const std::string& what) const {
  throw std::logic_error(fmt::format("kernel '{}', block ({}, {}, {}) of {} threads: {}", what_, blockIdx.x,
                                     blockIdx.y, blockIdx.z, blockDim.x * blockDim.y * blockDim.z, what));
}

void Engine::run(const char* what, dim3 blocks, dim3 threads, size_t shared_bytes, void (*call)(const void*),
                 const void* body) {
  if (what_) throw std::logic_error(fmt::format("kernel '{}' is started inside kernel '{}'", what, what_));
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > kMostThreads || threads.z > 64 || blocks.x == 0 || blocks.y == 0 ||
      blocks.z == 0 || blocks.x > 0x7fffffff || blocks.y > 65535 || blocks.z > 65535 ||
      shared_bytes > kMostSharedBytes)
    throw std::logic_error(fmt::format(
        "kernel '{}' cannot start: grid ({}, {}, {}) of blocks ({}, {}, {}) with {} bytes of dynamic shared "
        "memory; "
        "a block has at most {} threads and {} bytes, a grid at most 2^31-1 x 65535 x 65535 blocks",
        what, blocks.x, blocks.y, blocks.z, threads.x, threads.y, threads.z, shared_bytes, kMostThreads,
        kMostSharedBytes));
  struct Running {
    ~Running() { self->what_ = nullptr; }
    Engine* self;
  } running{this};
  what_ = what;
  call_ = call;
  body_ = body;
  gridDim = blocks;
  blockDim = threads;
  shared_bytes_ = shared_bytes;
  prepare(threads);
  for (blockIdx.z = 0; blockIdx.z < blocks.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) run_block();
  for (const auto& fiber : fibers_)
    if (!fiber->intact()) {
      fmt::print(stderr, "kernel '{}': a thread needs more stack than the emulation has\n", what_);
      std::abort();
    }
}

void Engine::prepare(dim3 threads) {
  indices_.clear();
  for (unsigned z = 0; z < threads.z; ++z)
    for (unsigned y = 0; y < threads.y; ++y)
      for (unsigned x = 0; x < threads.x; ++x) indices_.push_back({x, y, z});
  const auto count = static_cast<unsigned>(indices_.size());
  warps_.resize((count + kLanes - 1) / kLanes);
  for (unsigned w = 0; w < warps_.size(); ++w) {
    const unsigned lanes = std::min(kLanes, count - w * kLanes);
    warps_[w].exists = lanes == kLanes ? ~0u : (1u << lanes) - 1;
  }
  if (shared_bytes_ > 0) {
    shared_memory_.resize(kMostSharedBytes + kGuardBytes + 128);
    shared_ = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(shared_memory_.data()) + 127) /
                                               128 * 128);
  }
}

void Engine::run_block() {
  if (shared_bytes_ > 0) {
    std::memset(shared_, 0xff, shared_bytes_);
    std::memset(shared_ + shared_bytes_, kGuard, kGuardBytes);
  }
  for (WarpState& warp : warps_) {
    warp.ready = warp.unstarted = warp.exists;
    warp.at_barrier = warp.at_operation = warp.polling = warp.done = 0;
  }
  ++block_number_;
  live_ = static_cast<unsigned>(indices_.size());
  arrived_ = voted_ = 0;
  descending_ = (blockIdx.x & 1) != 0;
  try {
    while (true) {
      const auto count = static_cast<unsigned>(warps_.size());
      for (unsigned i = 0; i < count; ++i) run_warp(descending_ ? count - 1 - i : i);
      if (live_ == 0) break;
      if (wake() || do_later()) continue;
      if (arrived_ != live_) misuse("threads wait for others that will not come: " + who_waits_where());
      release_barrier();
    }
    if (!later_.empty()) misuse("it ends before the copies that it began");
    check_shared_memory();
  } catch (...) {
    forget_suspended();
    throw;
  }
}

void Engine::run_warp(unsigned number) {
  warp_ = &warps_[number];
  warp_number_ = number;
  while (warp_->ready) {
    const unsigned lane = first_of(warp_->ready);
    Fiber* fiber;
    if (warp_->unstarted >> lane & 1) {
      fiber = idle_fiber();  // takes the lane itself
    } else {
      warp_->ready &= ~(1u << lane);
      become(lane);
      fiber = warp_->lanes[lane].fiber;
    }
    fiber->resume();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

bool Engine::take_unstarted() {
  if (!warp_->ready) return false;
  const unsigned lane = first_of(warp_->ready), bit = 1u << lane;
  if (!(warp_->unstarted & bit)) return false;
  warp_->ready &= ~bit;
  warp_->unstarted &= ~bit;
  become(lane);
  return true;
}

void Engine::serve() {
  while (true) {
    Fiber* self = idle_.back();
    idle_.pop_back();
    try {
      while (take_unstarted()) {
        warp_->lanes[lane_].fiber = self;
        call_(body_);
        warp_->done |= 1u << lane_;
        --live_;
      }
    } catch (...) {
      warp_->done |= 1u << lane_;
      failure_ = std::current_exception();
    }
    idle_.push_back(self);
    self->suspend();
  }
}

Fiber* Engine::idle_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>([](void* self) { static_cast<Engine*>(self)->serve(); }, this,
                                              fibers_.size()));
    idle_.push_back(fibers_.back().get());
  }
  return idle_.back();
}

void Engine::forget_suspended() {
  later_.clear();
  idle_.clear();
  for (auto& fiber : fibers_) {
    fiber->restart();
    idle_.push_back(fiber.get());
  }
}

void Engine::check_shared_memory() const {
  for (size_t i = 0; shared_bytes_ > 0 && i < kGuardBytes; ++i)
    if (shared_[shared_bytes_ + i] != kGuard)
      misuse(fmt::format("byte {} of dynamic shared memory was written; it has {}", shared_bytes_ + i,
                         shared_bytes_));
}

void Engine::suspend() { warp_->lanes[lane_].fiber->suspend(); }

int Engine::block_barrier(Vote vote, bool predicate, const Place& place) {
  if (arrived_ == 0) {
    vote_ = vote;
    place_ = place;
  } else if (vote != vote_ || place.line() != place_.line() ||
             (place.file_name() != place_.file_name() &&
              std::strcmp(place.file_name(), place_.file_name()) != 0)) {
    misuse(fmt::format("thread {} is at the barrier in {} while others are at the one in {}",
                       warp_number_ * kLanes + lane_, name_of(place), name_of(place_)));
  }
  ++arrived_;
  voted_ += predicate;
  warp_->lanes[lane_].place = place;
  warp_->at_barrier |= 1u << lane_;
  suspend();
  return verdict_;
}

void Engine::release_barrier() {
  verdict_ = vote_ == Vote::any   ? voted_ > 0
             : vote_ == Vote::all ? voted_ == arrived_
                                  : static_cast<int>(voted_);
  for (WarpState& warp : warps_) {
    warp.ready = warp.at_barrier;
    warp.at_barrier = 0;
  }
  arrived_ = voted_ = 0;
  descending_ = !descending_;
}

void Engine::wait_until(bool (*ready)(const void*), const void* what, const Place& place) {
  while (!ready(what)) {
    WarpState::Lane& me = warp_->lanes[lane_];
    me.ready = ready;
    me.what = what;
    me.place = place;
    warp_->polling |= 1u << lane_;
    suspend();
  }
}

/// Resumes those whose wait is over. False without any.
bool Engine::wake() {
  bool any = false;
  for (WarpState& warp : warps_)
    for (unsigned rest = warp.polling; rest; rest &= rest - 1) {
      const auto i = static_cast<unsigned>(__builtin_ctz(rest));
      if (!warp.lanes[i].ready(warp.lanes[i].what)) continue;
      warp.polling &= ~(1u << i);
      warp.ready |= 1u << i;
      any = true;
    }
  return any;
}

/// In turns the oldest and the youngest: nothing may depend on the order.
bool Engine::do_later() {
  if (later_.empty()) return false;
  const bool oldest = later_.size() % 2 == 0;
  const std::function<void()> work = std::move(oldest ? later_.front() : later_.back());
  oldest ? later_.pop_front() : later_.pop_back();
  work();
  return true;
}

uint32_t Engine::shared_address(const void* p) const {
  const auto* const byte = static_cast<const unsigned char*>(p);
  if (byte < shared_ || byte > shared_ + shared_bytes_) misuse("an address is not in dynamic shared memory");
  return static_cast<uint32_t>(kSharedBegin + (byte - shared_));
}

unsigned char* Engine::shared_at(uint32_t address, size_t bytes) const {
  if (address < kSharedBegin || address - kSharedBegin + bytes > shared_bytes_)
    misuse(fmt::format("bytes {} to {} are not in dynamic shared memory, which has {} from {}", address,
                       address + bytes, shared_bytes_, kSharedBegin));
  return shared_ + (address - kSharedBegin);
}

uint64_t Engine::warp_operation(Warp operation, unsigned mask, uint64_t value, unsigned source,
                                const Place& place) {
  WarpState& warp = *warp_;
  const unsigned bit = 1u << lane_;
  if (!(mask & bit) || mask & ~warp.exists || mask & warp.done) {
    misuse(fmt::format("{} ({}) by thread {} with mask {:#010x}: {}", name_of(operation), name_of(place),
                       warp_number_ * kLanes + lane_, mask,
                       !(mask & bit)         ? "the thread itself is not named"
                       : mask & ~warp.exists ? "it names lanes beyond the end of the block"
                                             : "it names lanes that have returned"));
  }
  WarpState::Lane& me = warp.lanes[lane_];
  me.value = value;
  me.mask = mask;
  me.source = source;
  me.operation = operation;
  me.place = place;
  if ((warp.at_operation & mask) == (mask & ~bit)) {
    finish_operation(warp, mask);
    warp.at_operation &= ~mask;
    warp.ready |= mask & ~bit;
  } else {
    warp.at_operation |= bit;
    suspend();
  }
  return me.value;
}

void Engine::finish_operation(WarpState& warp, unsigned mask) {
  const Warp operation = warp.lanes[lane_].operation;
  uint64_t values[kLanes];
  uint64_t all = operation == Warp::bit_and || operation == Warp::min ? ~uint64_t{0} : 0;
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    const auto i = static_cast<unsigned>(__builtin_ctz(rest));
    const WarpState::Lane& lane = warp.lanes[i];
    if (lane.mask != mask || lane.operation != operation) misuse(who_waits_where());
    if (operation == Warp::shuffle && !(mask >> lane.source & 1))
      misuse(fmt::format("a shuffle ({}) by thread {} with mask {:#010x} reads lane {}, which is not named",
                         name_of(lane.place), warp_number_ * kLanes + i, mask, lane.source));
    const uint64_t v = values[i] = lane.value;
    switch (operation) {
      case Warp::ballot:
        all |= (v & 1) << i;
        break;
      case Warp::add:
        all += v;
        break;
      case Warp::min:
        all = std::min(all, v);
        break;
      case Warp::max:
        all = std::max(all, v);
        break;
      case Warp::bit_and:
        all &= v;
        break;
      case Warp::bit_or:
        all |= v;
        break;
      case Warp::bit_xor:
        all ^= v;
        break;
      default:
        break;
    }
  }
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    const auto i = static_cast<unsigned>(__builtin_ctz(rest));
    WarpState::Lane& lane = warp.lanes[i];
    if (operation == Warp::shuffle) {
      lane.value = values[lane.source];
    } else if (operation == Warp::match) {
      lane.value = 0;
      for (unsigned j = 0; j < kLanes; ++j)
        if (mask >> j & 1 && values[j] == values[i]) lane.value |= uint64_t{1} << j;
    } else {
      lane.value = all;
    }
  }
}

std::string Engine::who_waits_where() const {
  std::string text;
  for (unsigned w = 0; w < warps_.size() && text.size() < 600; ++w) {
    const WarpState& warp = warps_[w];
    unsigned rest = warp.at_barrier | warp.at_operation | warp.polling | warp.done;
    while (rest) {  // lanes in the same state together
      const auto first = static_cast<unsigned>(__builtin_ctz(rest));
      const WarpState::Lane& a = warp.lanes[first];
      unsigned same = 0;
      std::string state;
      if (warp.done >> first & 1) {
        same = warp.done;
        state = "returned";
      } else if (warp.at_barrier >> first & 1) {
        same = warp.at_barrier;
        state = "at the barrier in " + name_of(a.place);
      } else if (warp.polling >> first & 1) {
        for (unsigned i = 0; i < kLanes; ++i)
          if (warp.polling >> i & 1 && warp.lanes[i].place.line() == a.place.line()) same |= 1u << i;
        state = "waiting in " + name_of(a.place);
      } else {
        for (unsigned i = 0; i < kLanes; ++i) {
          const WarpState::Lane& b = warp.lanes[i];
          if (warp.at_operation >> i & 1 && b.mask == a.mask && b.operation == a.operation &&
              b.place.line() == a.place.line())
            same |= 1u << i;
        }
        state = fmt::format("at {} in {} with mask {:#010x}", name_of(a.operation), name_of(a.place), a.mask);
      }
      same &= rest;
      rest &= ~same;
      text += fmt::format("{}warp {} lanes {:#010x} {}", text.empty() ? "" : "; ", w, same, state);
    }
  }
  return text;
}

}  // namespace

void run_blocks(const char* what, dim3 blocks, dim3 threads, size_t shared_bytes, void (*call)(const void*),
                const void* body) {
  engine.run(what, blocks, threads, shared_bytes, call, body);
}
void* dynamic_shared() { return engine.dynamic_shared(); }
int block_barrier(Vote vote, bool predicate, const Place& place) {
  return engine.block_barrier(vote, predicate, place);
}
uint64_t warp_operation(Warp operation, unsigned mask, uint64_t value, unsigned source, const Place& place) {
  return engine.warp_operation(operation, mask, value, source, place);
}
unsigned lane() { return engine.lane(); }
void wait_until(bool (*ready)(const void*), const void* what, const Place& place) {
  engine.wait_until(ready, what, place);
}
void later(std::function<void()> work) { engine.later(std::move(work)); }
uint64_t block_number() { return engine.block_number(); }
uint32_t shared_address(const void* p) { return engine.shared_address(p); }
unsigned char* shared_at(uint32_t address, size_t bytes) { return engine.shared_at(address, bytes); }
void misuse(const std::string& what) { engine.misuse(what); }

}  // namespace cuda_host
