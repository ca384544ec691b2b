// Indices out of range: detected on the device, reported to the host later. Private to CUDA kernels.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime.h"

namespace sherd::cuda {

/// Result of one queue's checks: the first check that found a bad index, and its lowest position.
struct BadIndex {
  int32_t found = 0;  // written last
  int32_t index = 0;
  int64_t position = 0, first = 0, bound = 0, look = 0;
  const char *op = nullptr, *what = nullptr;  // static strings of the host
};

/// Index checks of one queue. The queue's worker issues them. Their result is in pinned memory, so that
/// polling does not wait.
class [[nodiscard]] IndexGuard {
 public:
  IndexGuard() = default;
  ~IndexGuard();
  IndexGuard(const IndexGuard&) = delete;
  IndexGuard& operator=(const IndexGuard&) = delete;

  /// Takes the memory of the results. Else the first look() does.
  void prepare(cudaStream_t stream);
  /// Issues a check for indices outside [first, bound). `op` and `what` are static strings.
  void look(ExecutionContext& context, const char* op, const char* what, const int32_t* indices,
            int64_t count, int64_t bound, int64_t first);
  /// Returns the number of checks issued. Worker only.
  int64_t looks() const { return looks_; }
  /// Polls the result; any thread. @throws InvalidArgument (bad_index()) when one of the first `looks` checks
  /// is done and has found an index outside.
  void poll(int64_t looks) const;

 private:
  void* search_ = nullptr;  // device memory
  std::atomic<BadIndex*> finding_ = nullptr;
  int64_t looks_ = 0;
};

}  // namespace sherd::cuda
