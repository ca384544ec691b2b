#include <sherd/nn/kernels/strided/strided.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/narrow.h>
#include <sherd/kernels/device/cpu/parallel.h>
#include <sherd/kernels/device/cpu/transpose.h>
#include <sherd/kernels/device/cpu/vector_math.h>

#include "cpu_functions.h"
#include "cpu_tiling.h"

// Rows of a tile that are contiguous are used where they are; others are arranged in a buffer, by a transpose where an
// operand is contiguous along the columns.

namespace sherd::cpu {
namespace {

constexpr int64_t kShortRow = 16;  // a function of shorter rows runs over rows arranged one behind the other

/// Requests the tile's cache lines, which are far apart, for the second-level cache.
template <class T>
void prefetch_tile(const T* p, Step s, Extent e) {
  if (s.row == 1 && s.col > 1) std::swap(s.row, s.col), std::swap(e.rows, e.cols);
  if (s.col != 1) return;
  for (int64_t r = 0; r < e.rows; ++r)
    for (int64_t c = 0; c < e.cols; c += kLine / int64_t{sizeof(T)})
      __builtin_prefetch(p + r * s.row + c, 0, 2);
}

/// Rows of contiguous elements.
template <class T>
struct Rows {
  T* data;
  int64_t step;
};

/// Returns the extent of the same elements with all rows in one, if every step is that of dense rows.
Extent joined(Extent e, std::initializer_list<int64_t> steps) {
  const bool dense = std::all_of(steps.begin(), steps.end(), [&](int64_t s) { return s == e.cols; });
  return dense ? Extent{1, e.rows * e.cols} : e;
}

/// Returns whether a tile's rows are used in place.
bool in_place(Step s, Extent e, int64_t short_row) {
  return s.dense(e) || (s.col == 1 && e.cols >= short_row);
}

/// Returns the rows of a tile: where they are, or copied to `buffer`. One body for all functions.
template <class T>
[[gnu::noinline]] Rows<const T> arrange(const T* p, Step s, Extent e, int64_t short_row, T* buffer) {
  if (in_place(s, e, short_row)) return {p, s.dense(e) ? e.cols : s.row};
  if (s.col > 1 && s.row == 1) {
    transpose(buffer, e.cols, p, s.col, e.cols, e.rows);
    return {buffer, e.cols};
  }
  for (int64_t r = 0; r < e.rows; ++r) {
    const T* from = p + r * s.row;
    T* to = buffer + r * e.cols;
    if (s.col == 1) {
      std::copy_n(from, e.cols, to);
    } else if (s.col == 0) {
      std::fill_n(to, e.cols, from[0]);
    } else {
      for (int64_t c = 0; c < e.cols; ++c) to[c] = from[c * s.col];
    }
  }
  return {buffer, e.cols};
}

/// Returns the rows as fp32: where they are, or converted into `buffer`.
template <class T>
Rows<const float> widened(Rows<const T> rows, Extent e, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return rows;
  } else {
    const Extent run = joined(e, {rows.step});
    for (int64_t r = 0; r < run.rows; ++r) {
      const T* from = rows.data + r * rows.step;
      float* to = buffer + r * run.cols;
#pragma omp simd
      for (int64_t c = 0; c < run.cols; ++c) to[c] = float(from[c]);
    }
    return {buffer, e.cols};
  }
}

/// Copies rows to a tile of the output.
template <class T>
[[gnu::noinline]] void scatter(T* p, Step s, Extent e, Rows<const T> rows) {
  if (s.dense(e)) s = {e.cols, 1};
  if (s.col == 1) e = joined(e, {s.row, rows.step});
  constexpr int64_t kLineElements = kLine / int64_t{sizeof(T)};
  for (int64_t r = 0; r < e.rows; ++r) {
    T* to = p + r * s.row;
    const T* from = rows.data + r * rows.step;
    if (s.col == 1 && e.cols == kLineElements) {
      std::copy_n(from, kLineElements, to);
    } else if (s.col == 1) {
      std::copy_n(from, e.cols, to);
    } else {
      for (int64_t c = 0; c < e.cols; ++c) to[c * s.col] = from[c];
    }
  }
}

/// Computes a tile's rows. A pointer, so that what surrounds it is compiled once for all functions.
template <class T>
using Apply = void (*)(Rows<T> out, Rows<const float> x, Rows<const float> y, Rows<const float> z, Extent e);

/// out = F(x, y, z) of each element, a row of a tile at a time.
template <class T, class F>
void apply(Rows<T> out, Rows<const float> x, Rows<const float> y, Rows<const float> z, Extent e) {
  e = joined(e, {out.step, x.step, y.step, z.step});
  for (int64_t r = 0; r < e.rows; ++r) {
    T* to = out.data + r * out.step;
    const float *a = x.data + r * x.step, *b = y.data + r * y.step, *c = z.data + r * z.step;
    round_each(to, e.cols, [&](int64_t k) { return F()(a[k], b[k], c[k]); });
  }
}

/// Memory of a thread for one tile.
template <class T>
struct Buffers {
  alignas(64) T arranged[1 + kMapInputs][kTileElements];  // the output first
  alignas(64) float wide[kMapInputs][kTileElements];      // of an operand without memory, its value
};

/// One tile.
template <class T>
void map_tile(const Tiling& t, Apply<T> apply, const Tiling::Place& here, Buffers<T>& buffers) {
  const MapArgs& a = t.a;
  const Extent e = here.extent;
  const Step step = t.step(a.out);
  T* const to = a.out.ref.template as<T>() + here.at[0];
  const auto operand = [&](int k, int64_t short_row) {
    const T* from = a.in[k].ref.template as<T>() + here.at[1 + k];
    return arrange<T>(from, t.step(a.in[k]), e, short_row, buffers.arranged[1 + k]);
  };
  if (a.function == MapFunction::copy && a.in[0].ref.data) return scatter<T>(to, step, e, operand(0, 1));
  const bool direct = in_place(step, e, kShortRow);
  const Rows<T> out =
      direct ? Rows<T>{to, step.dense(e) ? e.cols : step.row} : Rows<T>{buffers.arranged[0], e.cols};
  Rows<const float> in[kMapInputs]{};
  for (int k = 0; k < kMapInputs; ++k)
    in[k] = k >= a.inputs      ? in[0]
            : a.in[k].ref.data ? widened<T>(operand(k, kShortRow), e, buffers.wide[k])
                               : Rows<const float>{buffers.wide[k], e.cols};
  apply(out, in[0], in[1], in[2], e);
  if (!direct) scatter<T>(to, step, e, {out.data, out.step});
}

/// Tiles [begin, end).
template <class T>
void map_tiles(const Tiling& t, Apply<T> apply, int64_t begin, int64_t end) {
  Buffers<T> buffers;
  const MapArgs& a = t.a;
  for (int k = 0; k < kMapInputs; ++k)
    if (a.in[k].ref.data == nullptr)
      std::fill_n(buffers.wide[k], t.tile.rows * t.tile.cols, float(a.in[k].value));
  constexpr int64_t kAhead = sizeof(T);  // tiles, of 64 lines on each side
  Tiling::Place places[kAhead];
  for (int64_t i = begin; i < end + kAhead; ++i) {
    Tiling::Place& place = places[i % kAhead];
    if (i >= begin + kAhead) map_tile<T>(t, apply, place, buffers);
    if (i >= end) continue;
    place = t.place(i);
    if (!t.transposed) continue;
    prefetch_tile(a.out.ref.template as<T>() + place.at[0], t.step(a.out), place.extent);
    for (int k = 0; k < a.inputs; ++k)
      if (a.in[k].ref.data)
        prefetch_tile(a.in[k].ref.template as<T>() + place.at[1 + k], t.step(a.in[k]), place.extent);
  }
}

void map(ExecutionContext& ctx, const MapArgs& a) {
  const Tiling t(a);
  const int64_t grain = std::max<int64_t>(1, kGrain / (t.tile.rows * t.tile.cols));
  with_activation(a.out.ref.dtype, [&]<class T>(T) {
    Apply<T> f = nullptr;
    host::with_map_function<MathFor<T>>(a.function, [&]<class F>(F) { f = apply<T, F>; });
    parallel_for(ctx, t.count, grain, [=](int64_t begin, int64_t end) { map_tiles<T>(t, f, begin, end); });
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
