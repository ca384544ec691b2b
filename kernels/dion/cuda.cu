#include <sherd/kernels/dion/dion.h>

#include <sherd/kernels/device/cuda/segments.h>

namespace sherd::cuda {
namespace {

// Block size of grid_for().
constexpr int kDionThreads = 256, kDionWarps = kDionThreads / 32;

// A warp takes a row: the order of its sum depends on the number of columns alone.
__global__ void __launch_bounds__(kDionThreads) dion_row_norms(const __grid_constant__ DionNormsArgs a) {
  const int64_t step = int64_t{gridDim.x} * kDionWarps;
  for (int64_t r = int64_t{blockIdx.x} * kDionWarps + threadIdx.x / 32; r < a.rows; r += step) {
    double sum = 0;
    for (int64_t c = threadIdx.x % 32; c < a.cols; c += 32)
      sum += fabs(static_cast<double>(a.in[r * a.cols + c]));
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) a.norms[r] = sum != sum ? INFINITY : sum;
  }
}

/// Writes 0 where a row is chosen, else -1.
__global__ void __launch_bounds__(kDionThreads) dion_mark(const __grid_constant__ DionChooseArgs a) {
  for (int64_t i = int64_t{blockIdx.x} * kDionThreads + threadIdx.x; i < a.batch * a.rows;
       i += int64_t{gridDim.x} * kDionThreads) {
    const int64_t first = i / a.rows * a.rows;
    const double mine = a.norms[i];
    int64_t before = 0;
    for (int64_t k = first; k < first + a.rows; ++k)
      before += a.norms[k] > mine || (a.norms[k] == mine && k < i);
    a.slots[i] = before < a.kept ? 0 : -1;
  }
}

/// Numbers the chosen rows. A number that another thread has written already has the sign of a chosen row, too.
__global__ void __launch_bounds__(kDionThreads) dion_number(const __grid_constant__ DionChooseArgs a) {
  for (int64_t i = int64_t{blockIdx.x} * kDionThreads + threadIdx.x; i < a.batch * a.rows;
       i += int64_t{gridDim.x} * kDionThreads) {
    const volatile int32_t* slots = a.slots;
    if (slots[i] < 0) continue;
    int32_t before = 0;
    for (int64_t k = i / a.rows * a.rows; k < i; ++k) before += slots[k] >= 0;
    a.slots[i] = before;
  }
}

template <bool kPut>
__global__ void __launch_bounds__(kDionThreads) dion_rows(const __grid_constant__ DionRowsArgs a) {
  for (int64_t i = int64_t{blockIdx.x} * kDionThreads + threadIdx.x; i < a.batch * a.rows * a.cols;
       i += int64_t{gridDim.x} * kDionThreads) {
    const int64_t row = i / a.cols, slot = a.slots[row];
    const int64_t chosen = (row / a.rows * a.kept + slot) * a.cols + i % a.cols;
    if constexpr (kPut) {
      a.all[i] = slot < 0 ? 0 : a.chosen[chosen];
    } else {
      if (slot >= 0) a.chosen[chosen] = a.all[i];
    }
  }
}

struct DionKeep {
  float factor;
  const int64_t* skip;

  __device__ bool nothing_to_do() const { return skip != nullptr && *skip != 0; }
};

template <class T>
struct DionKeepOp {
  static constexpr int kVec = 4;
  float* buffer;
  const T* results;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, buffer, results); }

  template <int N>
  __device__ void run(int64_t i, const DionKeep& d) const {
    Vec<float, N> b = load<N>(buffer, i);
    const Vec<T, N> r = load<N>(results, i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (to_float(r[k]) == 0) b[k] = __fmul_rn(b[k], d.factor);
    store(buffer, i, b);
  }
};

void dion_norms(ExecutionContext& context, const DionNormsArgs& a) {
  if (a.rows > 0) launch(context, "dion_norms", dion_row_norms, grid_for(32 * a.rows), a);
}

void dion_choose(ExecutionContext& context, const DionChooseArgs& a) {
  if (a.batch * a.rows == 0) return;
  launch(context, "dion_choose", dion_mark, grid_for(a.batch * a.rows), a);
  launch(context, "dion_choose", dion_number, grid_for(a.batch * a.rows), a);
}

void dion_take(ExecutionContext& context, const DionRowsArgs& a) {
  const int64_t elements = a.batch * a.rows * a.cols;
  if (elements > 0) launch(context, "dion_take", dion_rows<false>, grid_for(elements), a);
}

void dion_put(ExecutionContext& context, const DionRowsArgs& a) {
  const int64_t elements = a.batch * a.rows * a.cols;
  if (elements > 0) launch(context, "dion_put", dion_rows<true>, grid_for(elements), a);
}

void dion_keep(ExecutionContext& context, const DionKeepArgs& a) {
  with_payload(a.results.dtype, [&]<class T>(T) {
    const T* results = a.results.as<T>();
    for_segments<DionKeepOp<T>>(context, "dion_keep", a.segments, DionKeep{a.factor, a.skip},
                                [&](const DionSegment& s) {
                                  return DionKeepOp<T>{s.buffer, results + s.at};
                                });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const DionKernels* DionKernels::cuda() {
  static constexpr DionKernels table{
      .norms = cuda::dion_norms,
      .choose = cuda::dion_choose,
      .take = cuda::dion_take,
      .put = cuda::dion_put,
      .keep = cuda::dion_keep,
  };
  return &table;
}

}  // namespace sherd
