#include <sherd/nn/kernels/experts/experts.h>

#include <sherd/kernels/device/cuda/rows.h>

// A warp takes up to kStretch packs of a row, so that few long rows keep a GPU busy too. Places outside the
// tensors, of which check_indices has told, are left out of sums and give rows of zeros.
namespace sherd::cuda {

// cuda_route.cu, cuda_groups.cu, cuda_sort.cu
void route_top_k(ExecutionContext&, const RouteArgs&);
void route_top_k_backward(ExecutionContext&, const RouteArgs&);
void route_in_groups(ExecutionContext&, const GroupRouteArgs&);
void route_in_groups_backward(ExecutionContext&, const GroupRouteArgs&);
void count_choices(ExecutionContext&, const CountChoicesArgs&);
void update_selection_bias(ExecutionContext&, const SelectionBiasArgs&);
void sort_by_expert(ExecutionContext&, const ExpertSortArgs&);

namespace {

constexpr int kStretch = 8 * kWarp;
constexpr int kRows = 8;  // of a block

struct Stretch {
  int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int begin = static_cast<int>(blockIdx.y) * kStretch;

  __device__ Stretch() {}
  /// Calls f(pack) for this thread's packs.
  template <class F>
  __device__ void each(int packs, F f) const {
#pragma unroll 4
    for (int pack = begin + lane; pack < packs && pack < begin + kStretch; pack += kWarp) f(pack);
  }
};

template <class T>
Grid grid_of_stretches(int64_t rows, int64_t cols) {
  const int64_t stretches = (packs_of<T>(cols) + kStretch - 1) / kStretch;
  return {dim3(static_cast<unsigned>((rows + kRows - 1) / kRows), static_cast<unsigned>(stretches)),
          dim3(kRows * kWarp)};
}

__device__ bool inside(int64_t place, const ExpertRowsArgs& a) {
  return place >= 0 && place < a.rows * a.slots;
}

__device__ float gate_of(const ExpertRowsArgs& a, int64_t place) {
  return a.gates.data == nullptr ? 1.0f : static_cast<const float*>(a.gates.data)[place];
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kRows* kWarp) expand(ExpertRowsArgs a) {
  const Stretch me;
  if (me.row >= a.rows * a.slots) return;
  const int64_t place = a.order[me.row];
  const bool known = inside(place, a);
  const float gate = known ? gate_of(a, place) : 0.0f;
  const auto from = row_of<T, kAligned>(a.tokens, known ? place / a.slots : 0, a.cols);
  const auto to = row_of<T, kAligned>(a.copies, me.row, a.cols);
  me.each(to.packs(), [&](int pack) {
    Pack<T> x = known ? from.load(pack) : Pack<T>{};
    if (a.gates.data != nullptr) x = pack_of<T>([&](int k) { return gate * x[k]; });
    to.store(pack, x);
  });
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kRows* kWarp) combine(ExpertRowsArgs a) {
  const Stretch me;
  if (me.row >= a.rows) return;
  const auto to = row_of<T, kAligned>(a.tokens, me.row, a.cols);
  me.each(to.packs(), [&](int pack) {
    float sum[Pack<T>::kCount] = {};
    for (int64_t place = me.row * a.slots; place < (me.row + 1) * a.slots; ++place) {
      const int64_t at = a.position[place];
      if (!inside(at, a)) continue;
      const float gate = gate_of(a, place);
      const Pack<T> copy = row_of<T, kAligned>(a.copies, at, a.cols).load(pack);
#pragma unroll
      for (int k = 0; k < Pack<T>::kCount; ++k) sum[k] = fmaf(gate, copy[k], sum[k]);
    }
    to.store(pack, pack_of<T>([&](int k) { return sum[k]; }));
  });
}

/// A warp for each place.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kRows* kWarp) dot_rows(ExpertRowsArgs a) {
  const RowThread<kWarp> me;
  if (me.row >= a.rows * a.slots) return;
  const int64_t at = a.position[me.row];
  float sum = 0;
  if (inside(at, a)) {
    const auto token = row_of<T, kAligned>(a.tokens, me.row / a.slots, a.cols);
    const auto copy = row_of<T, kAligned>(a.copies, at, a.cols);
    const int packs = token.packs();
#pragma unroll 4
    for (int pack = me.thread; pack < packs; pack += kWarp) {
      const Pack<T> x = token.load(pack), y = copy.load(pack);
#pragma unroll
      for (int k = 0; k < Pack<T>::kCount; ++k) sum = fmaf(x[k], y[k], sum);
    }
  }
  sum = warp_reduce(sum, Add{});
  if (me.thread == 0) static_cast<float*>(a.dgates.data)[me.row] = sum;
}

/// Calls f(type, whether rows are aligned).
template <class F>
void with_form(const ExpertRowsArgs& a, F&& f) {
  with_f32_bf16(a.tokens.dtype, [&](auto type) {
    with_flag(rows_aligned<decltype(type)>(a.cols, {a.tokens.data, a.copies.data}),
              [&](auto aligned) { f(type, aligned); });
  });
}

void expand_rows(ExecutionContext& context, const ExpertRowsArgs& a) {
  with_form(a, [&](auto type, auto aligned) {
    using T = decltype(type);
    launch(context, "expand_rows", expand<T, aligned()>, grid_of_stretches<T>(a.rows * a.slots, a.cols), a);
  });
}

void combine_rows(ExecutionContext& context, const ExpertRowsArgs& a) {
  with_form(a, [&](auto type, auto aligned) {
    using T = decltype(type);
    launch(context, "combine_rows", combine<T, aligned()>, grid_of_stretches<T>(a.rows, a.cols), a);
  });
}

void combine_gates_backward(ExecutionContext& context, const ExpertRowsArgs& a) {
  with_form(a, [&](auto type, auto aligned) {
    using T = decltype(type);
    launch(context, "combine_gates_backward", dot_rows<T, aligned()>, grid_of_rows<kWarp>(a.rows * a.slots),
           a);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const ExpertsKernels* ExpertsKernels::cuda() {
  static constexpr ExpertsKernels table{
      .route_top_k = cuda::route_top_k,
      .route_top_k_backward = cuda::route_top_k_backward,
      .route_in_groups = cuda::route_in_groups,
      .route_in_groups_backward = cuda::route_in_groups_backward,
      .count_choices = cuda::count_choices,
      .update_selection_bias = cuda::update_selection_bias,
      .sort_by_expert = cuda::sort_by_expert,
      .expand_rows = cuda::expand_rows,
      .combine_rows = cuda::combine_rows,
      .combine_gates_backward = cuda::combine_gates_backward,
  };
  return &table;
}

}  // namespace sherd
