#include "index_guard.h"

#include <algorithm>
#include <atomic>
#include <new>

#include <sherd/kernels/device/detail/bad_index.h>

#include "launch.h"

namespace sherd::cuda {
namespace {

/// Zero between checks; the checks of a queue use it one after the other.
struct Search {
  unsigned long long first;  // ~(position << 32 | index) of the lowest position; 0: none
  unsigned blocks_done;
};

constexpr int64_t kMostPositions = int64_t{1} << 31;

/// `finding` is complete but for index and position; positions count from `base`.
__global__ void __launch_bounds__(256) find_foreign(const int32_t* indices, int64_t count, int64_t base,
                                                    BadIndex finding, Search* search, BadIndex* out) {
  const int64_t bound = finding.bound, lowest = finding.first;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int32_t index = indices[i];
    if (index >= lowest && index < bound) continue;
    atomicMax(&search->first, ~(static_cast<unsigned long long>(i) << 32 | static_cast<uint32_t>(index)));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicInc(&search->blocks_done, gridDim.x - 1) != gridDim.x - 1) return;  // not the last block
  const unsigned long long first = ~atomicExch(&search->first, 0ull);
  if (first == ~0ull || out->found != 0) return;
  finding.index = static_cast<int32_t>(static_cast<uint32_t>(first));
  finding.position = base + static_cast<int64_t>(first >> 32);
  *out = finding;
  __threadfence_system();
  *static_cast<volatile int32_t*>(&out->found) = 1;
}

}  // namespace

void IndexGuard::prepare(cudaStream_t stream) {
  void* pinned = nullptr;
  check(cudaHostAlloc(&pinned, sizeof(BadIndex), cudaHostAllocPortable), "index guard");
  finding_ = new (pinned) BadIndex;
  check(cudaMalloc(&search_, sizeof(Search)), "index guard");
  check(cudaMemsetAsync(search_, 0, sizeof(Search), stream), "index guard");
}

IndexGuard::~IndexGuard() {
  if (search_ != nullptr) cudaFree(search_);
  if (finding_ != nullptr) cudaFreeHost(finding_);
}

void IndexGuard::look(ExecutionContext& context, const char* op, const char* what, const int32_t* indices,
                      int64_t count, int64_t bound, int64_t first) {
  if (count <= 0) return;
  if (search_ == nullptr) prepare(static_cast<cudaStream_t>(context.native));
  BadIndex finding;
  finding.first = first;
  finding.bound = bound;
  finding.look = ++looks_;
  finding.op = op;
  finding.what = what;
  for (int64_t base = 0; base < count; base += kMostPositions) {
    const int64_t part = std::min(kMostPositions, count - base);
    launch(context, "check_indices", find_foreign, grid_for((part + 3) / 4, 132), indices + base, part, base,
           finding, static_cast<Search*>(search_), finding_.load());
  }
}

void IndexGuard::poll(int64_t looks) const {
  const BadIndex* const finding = finding_;
  if (finding == nullptr) return;
  const volatile int32_t& found = finding->found;
  if (found == 0) return;
  std::atomic_thread_fence(std::memory_order_acquire);
  const BadIndex& f = *finding;
  if (f.look <= looks) throw InvalidArgument(bad_index(f.op, f.what, f.index, f.position, f.bound));
}

}  // namespace sherd::cuda
