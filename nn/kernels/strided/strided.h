// Elementwise functions of strided operands. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <sherd/base/enum_table.h>
#include <sherd/kernels/device/ref.h>
#include <sherd/nn/kernels/strided/view.h>

namespace sherd {

/// Scalar functions of the operands a, b, c. Comparisons give 1 or 0. Those behind `where` are products with
/// derivatives, a being the gradient: divide_slope and the power_ functions take (dy, x, divisor or exponent),
/// maximum_share (dy, this operand, the other), the last three (dy, y).
enum class MapFunction : uint8_t {
  copy,            // a
  add,             // a + b
  subtract,        // a - b
  multiply,        // a b
  divide,          // a / b
  power,           // a^b
  maximum,         // the larger one; NaN if either is
  less,            // a < b
  less_equal,      // a <= b
  equal,           // a = b
  exp,             // e^a
  log,             // ln a
  sqrt,            // square root of a
  tanh,            // tanh a
  sigmoid,         // 1 / (1 + e^-a)
  where,           // a = 0 ? c : b
  divide_slope,    // -a b / c^2
  power_base,      // a c b^(c - 1)
  power_exponent,  // a b^c ln b; 0 where b = 0 and c >= 0
  maximum_share,   // a where b > c, a / 2 where b = c, else 0
  sqrt_slope,      // a / (2 b)
  tanh_slope,      // a (1 - b^2)
  sigmoid_slope,   // a b (1 - b)
};

inline constexpr EnumTable<MapFunction, 23> kMapFunctionNames{
    "copy",           "add",           "subtract",   "multiply",   "divide",       "power",
    "maximum",        "less",          "less_equal", "equal",      "exp",          "log",
    "sqrt",           "tanh",          "sigmoid",    "where",      "divide_slope", "power_base",
    "power_exponent", "maximum_share", "sqrt_slope", "tanh_slope", "sigmoid_slope"};
constexpr const char* name_of(MapFunction f) { return kMapFunctionNames.name(f); }

inline constexpr int kMapDims = 8;    ///< dimensions that operands may have
inline constexpr int kMapInputs = 3;  ///< operands of a function

/// Memory with the strides of each dimension in elements, or without memory the same `value` everywhere.
struct MapOperand {
  Ref ref{};
  int64_t strides[kMapDims] = {};
  double value = 0;
};

/// out[i] = function(in[0][i], ...) for all i in `sizes`: f32 or bf16, computed in fp32 and rounded once. Dimensions
/// of size 1 are left out, and those that are one dimension in every operand are merged. Unused inputs repeat the
/// first. exp is infinite above 88 on the CPU.
struct MapArgs {
  MapFunction function = MapFunction::copy;
  int dims = 0;
  int64_t sizes[kMapDims] = {};
  MapOperand out{}, in[kMapInputs]{};
  int inputs = 0;

  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < dims; ++d) n *= sizes[d];
    return n;
  }
};

/// Broadcast operands count as if they were dense.
inline Work work_of(const Device&, const MapArgs& a) {
  int64_t bytes = bytes_of({a.out.ref}, a.count());
  for (int i = 0; i < a.inputs; ++i) bytes += bytes_of({a.in[i].ref}, a.count());
  return {.bytes = bytes};
}

struct StridedKernels {
  static constexpr const char* kName = "strided";
  static const StridedKernels* reference();
  static const StridedKernels* cpu();
  static const StridedKernels* cuda();

  void (*map)(ExecutionContext&, const MapArgs&);
};

namespace ops {

/// An operand of map(): a view, or one number.
struct MapInput {
  MapInput(StridedView v) : view(std::move(v)) {}
  MapInput(const Tensor& t) : view(dense(t)) {}
  MapInput(double v) : value(v) {}
  StridedView view{};
  double value = 0;
};

/// out = f(in...), views of one shape and dtype. An input may be out itself with the same strides; memory of out does
/// not overlap it in another way, and out has each element once.
void map(Stream& s, MapFunction f, const StridedView& out, const std::vector<MapInput>& in);

}  // namespace ops
}  // namespace sherd
