#include <sherd/kernels/normuon/normuon.h>

#include <algorithm>

#include <sherd/kernels/rest/cuda_forms.h>

// A warp takes a row's part in a segment. Records are sums of integers, so no order shows; what follows from
// them is double arithmetic whose order depends on the matrix's rows alone.

namespace sherd::cuda {
namespace {

using Word = unsigned long long;  // what atomicAdd takes

constexpr int kRowSegments = 30, kThreads = 256, kWarps = kThreads / 32, kMatrices = 64;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Segments of a launch, by value.
struct RowBatch {
  int count = 0;
  RowSegment segments[kRowSegments];
  int64_t parts[kRowSegments + 1] = {};  // rows that the segments before have elements of
};

/// Calls f(segment, row of the records, first element, end) for the parts of rows that are this warp's.
template <class F>
__device__ void for_parts(const RowBatch& batch, const F& f) {
  int s = 0;
  const int64_t first = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, step = int64_t{gridDim.x} * kWarps;
  for (int64_t part = first; part < batch.parts[batch.count]; part += step) {
    while (batch.parts[s + 1] <= part) ++s;
    const RowSegment& segment = batch.segments[s];
    const int64_t row = segment.first / segment.cols + part - batch.parts[s];
    const int64_t from = row * segment.cols - segment.first, to = from + segment.cols;
    f(segment, segment.row + row, from < 0 ? 0 : from, to < segment.count ? to : segment.count);
  }
}

__device__ float moment_of(const RowSegment& s, int64_t i) {
  if (s.dtype == DType::f32) return static_cast<const float*>(s.moment)[i];
  return __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(s.moment)[i]) << 16);
}

__global__ void __launch_bounds__(kThreads)
    add_records(const __grid_constant__ RowBatch batch, int64_t* records) {
  const unsigned lane = threadIdx.x % 32;
  for_parts(batch, [&](const RowSegment& s, int64_t row, int64_t begin, int64_t end) {
    Word digits[RowRecord::kDigits] = {};
    for (int64_t i = begin + lane; i < end; i += 32) {
      const float v = s.x[i];
      const double x = fabsf(v) < 65536.0f ? static_cast<double>(v) : 65536.0;
      double rest = x * x;
      for (int d = RowRecord::kDigits - 1; d >= 0; --d) {
        const double digit = floor(rest);
        digits[d] += static_cast<Word>(digit);
        rest = (rest - digit) * 4294967296.0;
      }
    }
    auto* record = reinterpret_cast<Word*>(records + row * RowRecord::kWords);
    for (int d = 0; d < RowRecord::kDigits; ++d) {
      for (int step = 16; step > 0; step /= 2) digits[d] += __shfl_xor_sync(kAllLanes, digits[d], step);
      if (lane == 0 && digits[d] != 0) atomicAdd(&record[d], digits[d]);
    }
    if (lane == 0 && s.begins_rows && (s.first + begin) % s.cols == 0)
      atomicAdd(&record[RowRecord::kMoment], Word{__float_as_uint(moment_of(s, begin))});
  });
}

struct MatrixBatch {
  RowMatrix matrices[kMatrices];
};

__device__ double squares_of(const int64_t* record) {
  double sum = 0;
  for (int d = 0; d < RowRecord::kDigits; ++d) sum += ldexp(static_cast<double>(record[d]), 32 * d - 64);
  return sum;
}

/// A block for each matrix.
__global__ void __launch_bounds__(kThreads)
    find_scales(const __grid_constant__ MatrixBatch batch, const int64_t* records, float* scales,
                float* moments, double beta2, double eps) {
  const RowMatrix& m = batch.matrices[blockIdx.x];
  __shared__ double sums[kThreads];
  double norm = 0;
  for (int64_t r = m.row + threadIdx.x; r < m.row + m.rows; r += kThreads) {
    const int64_t* record = records + r * RowRecord::kWords;
    const double squares = squares_of(record);
    const double before = __uint_as_float(static_cast<uint32_t>(record[RowRecord::kMoment]));
    const float moment =
        static_cast<float>(beta2 * before + (1 - beta2) * (squares / static_cast<double>(m.cols)));
    const double inverse = 1 / (sqrt(static_cast<double>(moment)) + eps);
    moments[r] = moment;
    norm += squares * inverse * inverse;
  }
  sums[threadIdx.x] = norm;
  for (unsigned step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  __syncthreads();
  const double factor = sums[0] > 0 ? m.target / sqrt(sums[0]) : 0;
  for (int64_t r = m.row + threadIdx.x; r < m.row + m.rows; r += kThreads)  // those that it wrote itself
    scales[r] = static_cast<float>(factor / (sqrt(static_cast<double>(moments[r])) + eps));
}

__global__ void __launch_bounds__(kThreads)
    scale_parts(const __grid_constant__ RowBatch batch, const float* scales, const float* moments,
                const int64_t* skip) {
  const bool moves = skip == nullptr || *skip == 0;
  for_parts(batch, [&](const RowSegment& s, int64_t row, int64_t begin, int64_t end) {
    const float scale = scales[row], moment = moments[row];
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) s.x[i] = __fmul_rn(s.x[i], scale);
    if (!moves) return;
    uint16_t bits = 0;
    if (s.dtype == DType::bf16)
      bits = rounded_bits(moment, Draw<1>(s.noise, (s.first + begin) / s.cols).at(NoiseUse::second_state, 0));
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) {
      if (s.dtype == DType::f32)
        static_cast<float*>(s.moment)[i] = moment;
      else
        static_cast<uint16_t*>(s.moment)[i] = bits;
    }
  });
}

/// Calls go(batch, grid) for every launch's worth of segments.
template <class Go>
void for_batches(const std::vector<RowSegment>& segments, const Go& go) {
  RowBatch batch;
  const auto flush = [&] {
    if (batch.count > 0)
      go(batch, Grid{dim3(blocks_of(batch.parts[batch.count], kWarps, 132 * 8)), dim3(kThreads)});
    batch.count = 0;
  };
  for (const RowSegment& s : segments) {
    if (s.count <= 0) continue;
    const int i = batch.count++;
    batch.segments[i] = s;
    batch.parts[i + 1] = batch.parts[i] + (s.first + s.count - 1) / s.cols - s.first / s.cols + 1;
    if (batch.count == kRowSegments) flush();
  }
  flush();
}

void row_records(ExecutionContext& context, const RowRecordsArgs& a) {
  for_batches(a.segments, [&](const RowBatch& batch, const Grid& grid) {
    launch(context, "row_records", add_records, grid, batch, a.records);
  });
}

void row_scales(ExecutionContext& context, const RowScalesArgs& a) {
  for (size_t first = 0; first < a.matrices.size(); first += kMatrices) {
    MatrixBatch batch;
    const size_t count = std::min<size_t>(kMatrices, a.matrices.size() - first);
    std::copy_n(a.matrices.begin() + static_cast<int64_t>(first), count, batch.matrices);
    launch(context, "row_scales", find_scales, Grid{dim3(static_cast<unsigned>(count)), dim3(kThreads)},
           batch, a.records, a.scales, a.moments, a.beta2, a.eps);
  }
}

void scale_rows(ExecutionContext& context, const ScaleRowsArgs& a) {
  for_batches(a.segments, [&](const RowBatch& batch, const Grid& grid) {
    launch(context, "scale_rows", scale_parts, grid, batch, a.scales, a.moments, a.skip);
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const NorMuonKernels* NorMuonKernels::cuda() {
  static constexpr NorMuonKernels table{
      .row_records = cuda::row_records,
      .row_scales = cuda::row_scales,
      .scale_rows = cuda::scale_rows,
  };
  return &table;
}

}  // namespace sherd
