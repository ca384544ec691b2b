// A CUDA stream as sherd's NativeQueue, with the handles and workspaces of the libraries that run on it.
// Private to the CUDA backends.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/kernels/device/detail/stream_scratch.h>
#include <sherd/kernels/device/device.h>

#include "event_clock.h"
#include "index_guard.h"
#include "lazy_library.h"
#include "runtime.h"

namespace sherd::cuda {

struct MatmulPlans;

/// Properties by which kernels choose their form.
struct Chip {
  int ordinal = 0;
  int multiprocessors = 1;
  int capability = 0;  // 90 for compute capability 9.0
  bool tf32 = false;
  int64_t shared_bytes = 48 * 1024;                         // most dynamic shared memory of a block
  SymmetricProducts symmetric = SymmetricProducts::blocks;  // or hopper; see products.h
  AttentionMethod attention = AttentionMethod::own;         // automatic: cuDNN, if it starts
};

/// A handle of cuSOLVER and the default parameters of its 64-bit functions.
struct Solver {
  cusolverDnHandle_t handle = nullptr;
  cusolverDnParams_t parameters = nullptr;
};

/// Any thread may ask. Each question selects the device first: a thread that has selected none would
/// otherwise open a context on GPU 0, which costs memory there.
class CudaEvent final : public NativeEvent {
 public:
  /// With a guard, synchronize() throws the findings of the checks issued before the event.
  explicit CudaEvent(int ordinal, std::shared_ptr<const IndexGuard> guard = nullptr, int64_t looks = 0);
  ~CudaEvent() override;
  bool done() const override;
  void synchronize() const override;
  cudaEvent_t handle() const { return event_; }

 private:
  const int ordinal_;
  cudaEvent_t event_ = nullptr;
  std::shared_ptr<const IndexGuard> guard_;
  int64_t looks_ = 0;
};

class CudaQueue final : public NativeQueue {
 public:
  /// `allocator` gives scratch and workspaces; all three outlive the queue.
  CudaQueue(const Chip& chip, Allocator& allocator, EventClock& clock, StreamPriority priority);
  ~CudaQueue() override;

  void start() override;
  void poll() override { guard_->poll(guard_->looks()); }
  void finish() noexcept override;
  void* handle() const override { return stream_; }
  std::shared_ptr<NativeEvent> record() override;
  std::shared_ptr<NativeStamp> stamp() override { return clock_.stamp(stream_); }
  void push_range(const char* what) noexcept override;
  void pop_range() noexcept override;
  void wait(const NativeEvent& event) override;
  void keep(std::shared_ptr<const void> object) override;
  void after(std::function<void()> f) override;
  void* scratch(int64_t bytes) override;

  const Chip& chip() const { return chip_; }
  cudaStream_t stream() const { return stream_; }
  IndexGuard& index_guard() { return *guard_; }
  /// Made on first use; calls must pass stream() (cuBLASLt) or are bound to it (cuSOLVER, in deterministic mode). cuSOLVER's
  /// workspaces are pieces of scratch().
  cublasLtHandle_t blas();
  const Solver& solver();
  /// Device memory of cuBLASLt's on this stream.
  void* workspace();
  static constexpr int64_t kWorkspaceBytes = kProductWorkspace;
  /// Returns the plans that matmul() keeps for this queue; null at first.
  std::shared_ptr<MatmulPlans>& matmul_plans() { return matmul_plans_; }
  /// The same of attention by cuDNN; goes before the stream.
  std::shared_ptr<void>& attention_plans() { return attention_plans_; }
  /// Returns the most dynamic shared memory (bytes) that `kernel` can be started with: the chip's limit less its
  /// static shared memory. Allows it that much at the first call, always the most, since what one launch sets
  /// holds for all others of that kernel, on every stream.
  int64_t dynamic_shared_limit(const char* what, const void* kernel);

 private:
  /// Objects kept by one event: fewer events, and nothing waits long for its release.
  static constexpr size_t kBatch = 16;

  const Chip& chip_;
  Allocator& allocator_;
  EventClock& clock_;
  cudaStream_t stream_ = nullptr;
  const std::shared_ptr<IndexGuard> guard_ = std::make_shared<IndexGuard>();
  cublasLtHandle_t blas_ = nullptr;
  Solver solver_;
  void* workspace_ = nullptr;
  std::shared_ptr<MatmulPlans> matmul_plans_;
  std::shared_ptr<void> attention_plans_;
  std::map<const void*, int64_t> dynamic_shared_;  // limits by kernel
  StreamScratch scratch_;
  using Batch = std::vector<std::shared_ptr<const void>>;
  Batch batch_;
  std::deque<std::pair<std::shared_ptr<NativeEvent>, Batch>> kept_;
};

/// The queue of a context that a CUDA device made.
inline CudaQueue& queue_of(const ExecutionContext& context) {
  return static_cast<CudaQueue&>(*context.queue);
}

/// @throws CudaError "<what>: ...".
void check(cublasStatus_t result, const char* what);
void check(cusolverStatus_t result, const char* what);

}  // namespace sherd::cuda
