// Products of bf16 matrices that attention makes, with one operand packed once for many products. Private to CPU kernels, and
// for processors with AVX512-BF16, whose instruction adds a pair of products to each sum in fp32.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/dtype.h>

namespace sherd::cpu {

constexpr int64_t kPanel = 32;  // columns of a panel

constexpr int64_t whole_panels(int64_t columns) { return (columns + kPanel - 1) / kPanel * kPanel; }

/// A right operand [2 * pairs, columns] in panels of 32 columns. A panel has a row of each pair of the operand's rows, and in
/// it the pair's two elements of each column side by side.
struct Panels {
  bf16* data;
  int64_t pairs;
  bf16* at(int64_t pair, int64_t column) const {
    return data + (column / kPanel * pairs + pair) * 2 * kPanel + column % kPanel * 2;
  }
};

/// Elements of such panels.
constexpr int64_t panel_elements(int64_t pairs, int64_t columns) { return 2 * pairs * whole_panels(columns); }

/// A left operand whose element (row, 2 * pair) is data[row * row_step + pair * pair_step], with (row, 2 * pair + 1) behind it.
struct PairedRows {
  const bf16* data;
  int64_t row_step, pair_step;
};

/// `to` = x, of `rows` rows [columns] with `step` elements from one to the next; zeros in the rows and columns that fill it.
void pack_rows(const Panels& to, const bf16* x, int64_t step, int64_t rows, int64_t columns);
/// `to` = x^T, for an even number of columns. x's rows become columns; zeros in those that fill the last panel.
void pack_transposed(const Panels& to, const bf16* x, int64_t step, int64_t rows, int64_t columns);

/// c [m, n] = a b, or c += a b: `pairs` pairs of b from `first_pair` on, and n columns, whole panels, from `first_column` on.
struct PanelProduct {
  int64_t m = 0, n = 0, pairs = 0;
  PairedRows a{};
  Panels b{};
  int64_t first_pair = 0, first_column = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool add = false;
};
void multiply(const PanelProduct& product);

}  // namespace sherd::cpu
