#include "fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Saves what a call must keep on the stack and resumes where the other stack stopped.
asm(R"(
.text
.p2align 4
.type cuda_host_switch, @function
cuda_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size cuda_host_switch, .-cuda_host_switch

.p2align 4
.type cuda_host_begin, @function
cuda_host_begin:
  .cfi_startproc
  .cfi_undefined rip
  movq %r12, %rdi
  call *%r13
  ud2
  .cfi_endproc
.size cuda_host_begin, .-cuda_host_begin
)");
extern "C" void cuda_host_switch(void** stopped, void* go_on) asm("cuda_host_switch");
extern "C" void cuda_host_begin() asm("cuda_host_begin");
#else
#include <ucontext.h>
#endif

namespace cuda_host {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = 512 << 10;
#else
constexpr size_t kStackBytes = 128 << 10;
#endif
constexpr uint64_t kCanary = 0x5afe57ac5afe57ac;

}  // namespace

Fiber::Fiber(void (*entry)(void*), void* argument, size_t number)
    : entry_(entry), argument_(argument), stagger_(number * 576 % 16384 / 64 * 64) {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<unsigned char*>(memory);
  std::memcpy(stack_, &kCanary, sizeof kCanary);
#if !defined(__x86_64__)
  context_ = new ucontext_t;
  outside_ = new ucontext_t;
#endif
  restart();
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
#if !defined(__x86_64__)
  delete static_cast<ucontext_t*>(context_);
  delete static_cast<ucontext_t*>(outside_);
#endif
  munmap(stack_, kStackBytes);
}

void Fiber::restart() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStackBytes);
  fake_stack_ = nullptr;
#endif
#if defined(__x86_64__)
  // Stack as cuda_host_switch leaves it: r15, r14, r13, r12, rbx, rbp, return address; then the stack is
  // aligned.
  auto top = reinterpret_cast<uintptr_t>(stack_ + kStackBytes - stagger_ - 64);
  void** frame = reinterpret_cast<void**>(top) - 7;
  std::memset(frame, 0, 8 * sizeof(void*));
  frame[2] = reinterpret_cast<void*>(&Fiber::begin);
  frame[3] = this;
  frame[6] = reinterpret_cast<void*>(&cuda_host_begin);
  context_ = frame;
#else
  auto* context = static_cast<ucontext_t*>(context_);
  getcontext(context);
  context->uc_stack.ss_sp = stack_;
  context->uc_stack.ss_size = kStackBytes - stagger_;
  context->uc_link = nullptr;
  const auto address = reinterpret_cast<uint64_t>(this);
  makecontext(context, reinterpret_cast<void (*)()>(+[](unsigned high, unsigned low) {
                begin(reinterpret_cast<void*>(uint64_t{high} << 32 | low));
              }),
              2, static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
#endif
}

void Fiber::begin(void* fiber) {
  auto* self = static_cast<Fiber*>(fiber);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->outside_stack_, &self->outside_stack_bytes_);
#endif
  self->entry_(self->argument_);
  std::abort();
}

void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  void* outside_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&outside_fake_stack, stack_, kStackBytes);
#endif
#if defined(__x86_64__)
  cuda_host_switch(&outside_, context_);
#else
  swapcontext(static_cast<ucontext_t*>(outside_), static_cast<ucontext_t*>(context_));
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(outside_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, outside_stack_, outside_stack_bytes_);
#endif
#if defined(__x86_64__)
  cuda_host_switch(&context_, outside_);
#else
  swapcontext(static_cast<ucontext_t*>(context_), static_cast<ucontext_t*>(outside_));
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &outside_stack_, &outside_stack_bytes_);
#endif
}

bool Fiber::intact() const {
  uint64_t word;
  std::memcpy(&word, stack_, sizeof word);
  return word == kCanary;
}

}  // namespace cuda_host
