// A stack of its own for a function that stops in the middle and resumes later, on one OS thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_host {

/// Made, resumed and destroyed by one OS thread. Every switch is reported to AddressSanitizer. To
/// ThreadSanitizer all fibers are their OS thread: what runs on them must be compiled without its records of
/// calls and returns (see CMakeLists.txt), which come in no order here. Fibers of its own it would have, at
/// 100 us a switch.
class Fiber {
 public:
  /// `entry(argument)` starts at the first resume() and never returns.
  /// @param number staggers the stacks of many fibers over the cache.
  Fiber(void (*entry)(void*), void* argument, size_t number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From outside: runs the fiber until it suspends.
  void resume();
  /// From inside: returns to the caller of resume().
  void suspend();
  /// Drops the fiber's unfinished work (nothing is unwound); the next resume() restarts.
  void restart();
  /// False when the stack was too small.
  bool intact() const;

 private:
  static void begin(void* fiber);

  void (*const entry_)(void*);
  void* const argument_;
  const size_t stagger_;
  unsigned char* stack_ = nullptr;
  void* context_ = nullptr;  // where the fiber stands; with ucontext, a ucontext_t
  void* outside_ = nullptr;  // stack of the caller of resume()
  // For AddressSanitizer.
  void* fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_stack_bytes_ = 0;
};

}  // namespace cuda_host
