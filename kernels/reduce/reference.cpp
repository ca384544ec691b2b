#include <sherd/kernels/reduce/reduce.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <type_traits>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

// Elements handled at once: the partial sums of one block stay in the first-level cache.
constexpr int64_t kBlock = 1024;
// The tree over n sources holds at most log2(n) partial sums: enough for a million ranks.
constexpr int kLevels = 20;

struct Sum {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return a < b || a != a ? a : b;
  }
};

template <class T>
using Accumulator = std::conditional_t<std::is_class_v<T>, float, T>;

/// One block: sources are taken in order like bits of a binary counter; equal-sized neighbours merge at once.
template <class T, class Op>
void reduce_block(T* dst, std::span<const void* const> sources, int64_t begin, int64_t count) {
  using A = Accumulator<T>;
  std::array<std::array<A, kBlock>, kLevels> partial;
  const auto source = [&](size_t s) { return static_cast<const T*>(sources[s]) + begin; };
  const auto merge = [&](int into) {
    A* a = partial[static_cast<size_t>(into)].data();
    const A* b = partial[static_cast<size_t>(into) + 1].data();
    for (int64_t i = 0; i < count; ++i) a[i] = Op::apply(a[i], b[i]);
  };

  int top = -1;
  const size_t pairs = sources.size() / 2;
  for (size_t p = 0; p < pairs; ++p) {
    A* out = partial[static_cast<size_t>(++top)].data();
    const T* a = source(2 * p);
    const T* b = source(2 * p + 1);
    for (int64_t i = 0; i < count; ++i) out[i] = Op::apply(static_cast<A>(a[i]), static_cast<A>(b[i]));
    for (size_t done = p; done & 1; done >>= 1) merge(--top);
  }
  if (sources.size() % 2) {
    A* out = partial[static_cast<size_t>(++top)].data();
    const T* a = source(sources.size() - 1);
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<A>(a[i]);
  }
  while (top > 0) merge(--top);
  for (int64_t i = 0; i < count; ++i) dst[i] = static_cast<T>(partial[0][static_cast<size_t>(i)]);
}

template <class T, class Op>
void reduce_typed(void* dst, std::span<const void* const> sources, int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; i += kBlock)
    reduce_block<T, Op>(static_cast<T*>(dst) + i, sources, begin + i, std::min(kBlock, count - i));
}

template <class Op>
void reduce_any(DType dtype, void* dst, std::span<const void* const> sources, int64_t begin, int64_t count) {
  with_dtype(dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) == 1)
      throw InvalidArgument("reduce: 8-bit types cannot be reduced; use f32, bf16, f16, f64, i32 or i64");
    else
      reduce_typed<T, Op>(dst, sources, begin, count);
  });
}

void reduce(ExecutionContext&, const ReduceArgs& r) {
  const auto& [op, dtype, dst, sources, begin, count] = r;
  if (sources.size() == 1) {
    const char* from = static_cast<const char*>(sources[0]) + begin * size_of(dtype);
    if (from != dst && count > 0) std::memcpy(dst, from, static_cast<size_t>(count * size_of(dtype)));
    return;
  }
  switch (op) {
    case ReduceOp::sum:
      return reduce_any<Sum>(dtype, dst, sources, begin, count);
    case ReduceOp::max:
      return reduce_any<Max>(dtype, dst, sources, begin, count);
    case ReduceOp::min:
      return reduce_any<Min>(dtype, dst, sources, begin, count);
  }
}

void accumulate_sum(ExecutionContext&, double* out, Ref x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[0] += get(x, i);
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const ReduceKernels* ReduceKernels::reference() {
  static constexpr ReduceKernels table{.reduce = reference::reduce,
                                       .accumulate_sum = reference::accumulate_sum};
  return &table;
}

const ReduceKernels* ReduceKernels::cpu() { return reference(); }

}  // namespace sherd
