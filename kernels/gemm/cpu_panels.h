// Products with a right operand that is packed once for many of them: attention's and Newton-Schulz's. E, the elements' type,
// is f32 or bf16. Sums are f32. Private to CPU kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/dtype.h>

namespace sherd::cpu {

/// Elements that one step of a product takes from each row and column: they are adjacent. bf16's instruction
/// adds two products to a sum.
template <class E>
constexpr int64_t kFold = sizeof(float) / sizeof(E);

constexpr int64_t kPanel = 32;  // columns of a panel

constexpr int64_t whole_panels(int64_t columns) { return (columns + kPanel - 1) / kPanel * kPanel; }

/// A right operand [steps * kFold, columns] in panels of 32 columns. A panel has a row of each step, and in it the step's
/// elements of each column.
template <class E>
struct Panels {
  E* data;
  int64_t steps;
  E* at(int64_t step, int64_t column) const {
    return data + ((column / kPanel * steps + step) * kPanel + column % kPanel) * kFold<E>;
  }
};

/// Elements of such panels.
template <class E>
constexpr int64_t panel_elements(int64_t steps, int64_t columns) {
  return kFold<E> * steps * whole_panels(columns);
}

/// A left operand. The elements of a row and step begin at data[row * row_step + step * step_step].
template <class E>
struct LeftRows {
  const E* data;
  int64_t row_step, step_step;
};

/// `to` = x, of `rows` rows [columns] with `stride` elements from one to the next; zeros in the rows and columns that fill it.
void pack_rows(const Panels<float>& to, const float* x, int64_t stride, int64_t rows, int64_t columns);
void pack_rows(const Panels<bf16>& to, const bf16* x, int64_t stride, int64_t rows, int64_t columns);
/// `to` = x^T, for columns in whole steps. x's rows become columns; zeros in those that fill the last panel.
template <class E>
void pack_transposed(const Panels<E>& to, const E* x, int64_t stride, int64_t rows, int64_t columns);

/// c [m, n] = a b, or c += a b: `steps` of b from `first_step` on, and n columns, whole panels, from `first_column` on.
template <class E>
struct PanelProduct {
  int64_t m = 0, n = 0, steps = 0;
  LeftRows<E> a{};
  Panels<E> b{};
  int64_t first_step = 0, first_column = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool add = false;
};
/// bf16 is for processors with AVX512-BF16.
void multiply(const PanelProduct<float>& product);
void multiply(const PanelProduct<bf16>& product);

}  // namespace sherd::cpu
