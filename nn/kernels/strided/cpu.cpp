#include <sherd/nn/kernels/strided/strided.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/vector_math.h>

#include "cpu_functions.h"

// The output is cut into tiles of two dimensions that fit in the L1 cache. Operands of a tile are read into dense rows of
// fp32, the function runs over these, and the result is written back. Dense fp32 operands are used where they are.

namespace sherd::cpu {
namespace {

constexpr int64_t kTileElements = 1024;
constexpr int64_t kTransposedSide = 64;  // of tiles that an operand has the other way round
constexpr int64_t kBlockSide = 8;        // tiles of a block of those

struct FloatMath {
  using Number = float;
  static float exp(float x) { return exp_fast(x); }
  static float log(float x) { return log_fast(x); }
  static float sqrt(float x) { return std::sqrt(x); }
  static float tanh(float x) { return tanh_fast(x); }
  static float sigmoid(float x) { return sigmoid_fast(x); }
  static float pow(float x, float y) { return std::pow(x, y); }
};

/// Rows and columns of a tile.
struct Extent {
  int64_t rows, cols;
};

/// Distances in elements between rows and between columns.
struct Step {
  int64_t row, col;
  bool dense(Extent e) const { return (col == 1 || e.cols == 1) && (row == e.cols || e.rows == 1); }
};

/// The cut of the output: columns are the last dimension, rows the one before; where an operand is contiguous along
/// another, that one; where both are short, the longest. All other dimensions are outside.
struct Tiling {
  explicit Tiling(const MapArgs& args) : a(args), col(a.dims - 1), row(a.dims - 2) {
    for (int d = 0; d < col; ++d)
      for (const MapOperand* o : {&a.out, &a.in[0], &a.in[1], &a.in[2]})
        if (o->ref.data && o->strides[d] == 1 && o->strides[col] > 1) row = d, transposed = true;
    if (!transposed && size(col) * size(row) < kTileElements)
      for (int d = 0; d < col; ++d)
        if (size(d) > size(row)) row = d;
    tile = transposed ? Extent{kTransposedSide, kTransposedSide} : Extent{1, kTileElements};
    tile.cols = std::min(tile.cols, size(col));
    if (!transposed) tile.rows = kTileElements / std::max<int64_t>(1, tile.cols);
    tile.rows = std::min(tile.rows, size(row));
    down = (size(row) + tile.rows - 1) / tile.rows;
    across = (size(col) + tile.cols - 1) / tile.cols;
    count = down * across;
    for (int d = 0; d < a.dims; ++d)
      if (d != col && d != row) count *= a.sizes[d];
  }

  int64_t size(int d) const { return d < 0 ? 1 : a.sizes[d]; }
  Step step(const MapOperand& o) const {
    return {row < 0 ? 0 : o.strides[row], col < 0 ? 0 : o.strides[col]};
  }
  /// Row and column of the i-th tile. Transposed tiles are taken by square blocks: each side of a copy has its rows in
  /// other pages of memory, and those of a block fit in the processor's translation buffer.
  std::pair<int64_t, int64_t> tile_at(int64_t i) const {
    if (!transposed) return {i / across, i % across};
    const int64_t strip = i / (kBlockSide * across), in_strip = i % (kBlockSide * across);
    const int64_t height = std::min(kBlockSide, down - strip * kBlockSide);
    const int64_t block = in_strip / (height * kBlockSide), in_block = in_strip % (height * kBlockSide);
    const int64_t width = std::min(kBlockSide, across - block * kBlockSide);
    return {strip * kBlockSide + in_block / width, block * kBlockSide + in_block % width};
  }
  /// Where tile i begins in each operand, the output first, and its extent.
  struct Place {
    int64_t at[1 + kMapInputs];
    Extent extent;
  };
  Place place(int64_t i) const {
    Place p{};
    const auto [of_row, of_col] = tile_at(i % (across * down));
    const int64_t c = of_col * tile.cols, r = of_row * tile.rows;
    int64_t outside = i / (across * down);
    const auto move = [&](int d, int64_t by) {
      p.at[0] += by * a.out.strides[d];
      for (int k = 0; k < kMapInputs; ++k) p.at[1 + k] += by * a.in[k].strides[d];
    };
    if (col >= 0) move(col, c);
    if (row >= 0) move(row, r);
    for (int d = a.dims - 1; d >= 0; --d)
      if (d != col && d != row) move(d, outside % a.sizes[d]), outside /= a.sizes[d];
    p.extent = {std::min(tile.rows, size(row) - r), std::min(tile.cols, size(col) - c)};
    return p;
  }

  MapArgs a;
  int col, row;
  bool transposed = false;
  Extent tile{};
  int64_t down = 1, across = 1, count = 1;
};

/// Requests the tile's cache lines: those of a transposed tile are far apart, and would be waited for one by one.
template <class T>
void prefetch_tile(const T* p, Step s, Extent e) {
  constexpr int64_t kLine = 64 / sizeof(T);
  if (s.row == 1 && s.col > 1) std::swap(s.row, s.col), std::swap(e.rows, e.cols);
  if (s.col != 1) return;
  for (int64_t r = 0; r < e.rows; ++r)
    for (int64_t c = 0; c < e.cols; c += kLine) __builtin_prefetch(p + r * s.row + c);
}

/// Returns the tile's elements as dense rows: where they are, or copied to `buffer`.
template <class T>
const float* read_tile(const T* p, Step s, Extent e, float* buffer) {
  if constexpr (std::is_same_v<T, float>)
    if (s.dense(e)) return p;
  if (s.dense(e)) e = {1, e.rows * e.cols}, s = {0, 1};
  if (s.col > 1 && s.row == 1) {
    for (int64_t c = 0; c < e.cols; ++c)
      for (int64_t r = 0; r < e.rows; ++r) buffer[r * e.cols + c] = float(p[c * s.col + r]);
    return buffer;
  }
  for (int64_t r = 0; r < e.rows; ++r) {
    const T* from = p + r * s.row;
    float* to = buffer + r * e.cols;
    if (s.col == 1) {
#pragma omp simd
      for (int64_t c = 0; c < e.cols; ++c) to[c] = float(from[c]);
    } else if (s.col == 0) {
      std::fill_n(to, e.cols, float(from[0]));
    } else {
      for (int64_t c = 0; c < e.cols; ++c) to[c] = float(from[c * s.col]);
    }
  }
  return buffer;
}

template <class T>
void write_tile(T* p, Step s, Extent e, const float* buffer) {
  if (s.dense(e)) e = {1, e.rows * e.cols}, s = {0, 1};
  for (int64_t r = 0; r < e.rows; ++r) {
    T* to = p + r * s.row;
    const float* from = buffer + r * e.cols;
    if (s.col == 1 || e.cols == 1) {
#pragma omp simd
      for (int64_t c = 0; c < e.cols; ++c) store(to[c], from[c]);
    } else {
      for (int64_t c = 0; c < e.cols; ++c) store(to[c * s.col], from[c]);
    }
  }
}

/// Copies rows that are contiguous on both sides; false for others.
template <class T>
bool copy_rows(T* to, Step out, const T* from, Step in, Extent e) {
  if (in.col != 1 || out.col != 1) return false;
  for (int64_t r = 0; r < e.rows; ++r) std::copy_n(from + r * in.row, e.cols, to + r * out.row);
  return true;
}

/// Tiles [begin, end).
template <class T, class F>
void map_tiles(const Tiling& t, F f, int64_t begin, int64_t end) {
  constexpr int64_t kMost = std::max(kTileElements, kTransposedSide * kTransposedSide);
  alignas(64) float buffers[1 + kMapInputs][kMost];
  const MapArgs& a = t.a;
  for (int k = 0; k < kMapInputs; ++k)
    if (a.in[k].ref.data == nullptr)
      std::fill_n(buffers[1 + k], t.tile.rows * t.tile.cols, float(a.in[k].value));
  Tiling::Place next = t.place(begin);
  for (int64_t i = begin; i < end; ++i) {
    const Tiling::Place here = std::exchange(next, t.place(std::min(i + 1, end - 1)));
    const Extent e = here.extent;
    if (t.transposed) {
      prefetch_tile(a.out.ref.template as<T>() + next.at[0], t.step(a.out), next.extent);
      for (int k = 0; k < a.inputs; ++k)
        if (a.in[k].ref.data)
          prefetch_tile(a.in[k].ref.template as<T>() + next.at[1 + k], t.step(a.in[k]), next.extent);
    }
    T* const to = a.out.ref.template as<T>() + here.at[0];
    const Step step = t.step(a.out);
    const bool copies = a.function == MapFunction::copy && a.in[0].ref.data;
    if (copies && copy_rows<T>(to, step, a.in[0].ref.template as<T>() + here.at[1], t.step(a.in[0]), e))
      continue;
    const float* in[kMapInputs];
    for (int k = 0; k < kMapInputs; ++k) {
      in[k] = k < a.inputs ? buffers[1 + k] : in[0];
      if (k < a.inputs && a.in[k].ref.data)
        in[k] = read_tile(a.in[k].ref.template as<T>() + here.at[1 + k], t.step(a.in[k]), e, buffers[1 + k]);
    }
    if (copies) {
      write_tile(to, step, e, in[0]);
      continue;
    }
    float* out = buffers[0];
    if constexpr (std::is_same_v<T, float>)
      if (step.dense(e)) out = to;
    const float *x = in[0], *y = in[1], *z = in[2];
#pragma omp simd
    for (int64_t k = 0; k < e.rows * e.cols; ++k) out[k] = f(x[k], y[k], z[k]);
    if (out == buffers[0]) write_tile(to, step, e, out);
  }
}

void map(ExecutionContext& ctx, const MapArgs& a) {
  const Tiling t(a);
  const int64_t grain = std::max<int64_t>(1, kGrain / (t.tile.rows * t.tile.cols));
  with_activation(a.out.ref.dtype, [&]<class T>(T) {
    host::with_map_function<FloatMath>(a.function, [&](auto f) {
      parallel_for(ctx, t.count, grain, [=](int64_t begin, int64_t end) { map_tiles<T>(t, f, begin, end); });
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const StridedKernels* StridedKernels::cpu() {
  static constexpr StridedKernels table{.map = cpu::map};
  return &table;
}

}  // namespace sherd
