#include <sherd/kernels/orthogonalize/orthogonalize.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/features.h>

#include "polar.h"
#include "products.h"

// Matrices are taken one after another, in the orientation with rows <= cols; m is the short side.

namespace sherd::cpu {
namespace {

/// Carves matrices from one piece of scratch memory.
class Carver {
 public:
  template <class T = float>
  static int64_t bytes(int64_t rows, int64_t cols) {
    return (rows * padded_stride<T>(cols) * int64_t{sizeof(T)} + 127) / 128 * 128;
  }
  Carver(ExecutionContext& ctx, int64_t bytes) : next_(static_cast<std::byte*>(ctx.scratch(bytes))) {}
  template <class T = float>
  Block<T> matrix(int64_t rows, int64_t cols) {
    return {reinterpret_cast<T*>(std::exchange(next_, next_ + bytes<T>(rows, cols))), padded_stride<T>(cols)};
  }

 private:
  std::byte* next_;
};

MatrixStatus status_of(double squares) {
  return !std::isfinite(squares) ? MatrixStatus::not_finite
         : squares == 0          ? MatrixStatus::zero
                                 : MatrixStatus::fine;
}

/// Squares of one size that the Gram iteration works in; r holds R at the start.
struct GramSquares {
  Block<float> r, z, rz, q, next;
};
constexpr int64_t kGramSquares = 5;

GramSquares carve_gram(Carver& carver, int64_t m) {
  return {carver.matrix(m, m), carver.matrix(m, m), carver.matrix(m, m), carver.matrix(m, m),
          carver.matrix(m, m)};
}

/// Q of the given steps on R, which is overwritten: Z = bR + cR^2, Q <- Q(Z + aI), R <- (Z + aI)R(Z + aI).
/// `a` is carried through the epilogues, so that Z alone is rounded.
Block<float> iterate(const ExecutionContext& ctx, int64_t m, GramSquares s,
                     std::span<const Coefficients> steps, DType working) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto [a, b, c] = steps[i];
    auto times = [&, a = a](Block<float> x, Block<float> to) {  // x(Z + aI)
      symmetric_product(ctx, m, m, x, s.z, false, {.beta = a, .addend = x, .working = working}, to);
    };
    symmetric_product(ctx, m, m, s.r, s.r, false, {.alpha = c, .beta = b, .addend = s.r, .working = working},
                      s.z);
    if (i == 0) {
      scaled_copy(ctx, m, m, s.z, 1, false, DType::f32, s.q);
      for (int64_t d = 0; d < m; ++d) s.q.data[d * s.q.ld + d] += a;
      if (working != DType::f32) scaled_copy(ctx, m, m, s.q, 1, false, working, s.q);
    } else {
      times(s.q, s.next);
      std::swap(s.q, s.next);
    }
    if (i + 1 == steps.size()) break;
    times(s.r, s.rz);
    times(s.rz, s.r);
  }
  return s.q;
}

/// Normalised matrix in, iterated matrix out. Steps alternate between x and y; the last one writes to `last`
/// when that is given. Returns where the result is.
template <class T>
struct Iterated {
  int64_t m, n;
  Block<T> x, y, last;
  Block<T> next(bool final) const { return final && last.data ? last : y; }
};

template <class T>
Block<T> standard_form(const ExecutionContext& ctx, const OrthogonalizeOptions& o, Iterated<T> it,
                       Block<T> gram, Block<T> polynomial, const ProductScratch<T>& scratch) {
  const bool exact = o.working == DType::f32;
  for (size_t i = 0; i < o.steps.size(); ++i) {
    const auto [a, b, c] = o.steps[i];
    symmetric_product(ctx, it.m, it.n, it.x, it.x, true, {.working = o.working, .scratch = scratch}, gram);
    // In f32, aX comes with the product; in 16 bits a + bG + cG^2 would lose what G adds to a.
    symmetric_product(ctx, it.m, it.m, gram, gram, false,
                      {.alpha = c,
                       .beta = b,
                       .addend = gram,
                       .diagonal = exact ? a : 0.0f,
                       .working = o.working,
                       .scratch = scratch},
                      polynomial);
    const Block<T> to = it.next(i + 1 == o.steps.size());
    product(ctx, it.m, it.n, it.m, polynomial, it.x,
            {.beta = exact ? 0.0f : a, .addend = it.x, .working = o.working, .scratch = scratch}, to);
    it.y = std::exchange(it.x, to);
  }
  return it.x;
}

Block<float> gram_form(const ExecutionContext& ctx, const OrthogonalizeOptions& o, Iterated<float> it,
                       const GramSquares& squares) {
  const std::span<const Coefficients> steps = o.steps;
  for (size_t begin = 0, part = 0; begin < steps.size(); ++part) {
    const size_t end = part < o.restarts.size() ? static_cast<size_t>(o.restarts[part]) : steps.size();
    symmetric_product(ctx, it.m, it.n, it.x, it.x, true, {.working = o.working}, squares.r);
    const Block<float> q = iterate(ctx, it.m, squares, steps.subspan(begin, end - begin), o.working);
    const Block<float> to = it.next(end == steps.size());
    product(ctx, it.m, it.n, it.m, q, it.x, {.working = o.working}, to);
    it.y = std::exchange(it.x, to);
    begin = end;
  }
  return it.x;
}

/// Returns whether matrices are stored in bf16: where products of it are fast.
bool in_bf16(const OrthogonalizeOptions& o) {
  return o.form == IterationForm::standard && o.working == DType::bf16 && features().bf16_products != nullptr;
}

int64_t newton_schulz_scratch(const OrthogonalizeArgs& args) {
  const int64_t m = std::min(args.rows, args.cols), n = std::max(args.rows, args.cols);
  const auto squares = Carver::bytes(m, m);
  if (in_bf16(args.options))
    return 2 * Carver::bytes<bf16>(m, n) + 2 * Carver::bytes<bf16>(m, m) +
           Carver::bytes(1, ProductScratch<bf16>::sum_elements(m, n)) +
           Carver::bytes<bf16>(1, ProductScratch<bf16>::packed_elements(m, n));
  return 2 * Carver::bytes(m, n) + (args.options.form == IterationForm::gram ? kGramSquares : 2) * squares;
}

int64_t gram_product_scratch(const GramProductArgs& a) {
  return a.contract_rows ? Carver::bytes(a.cols, a.rows) : 0;
}

int64_t gram_iterate_scratch(const GramIterateArgs& a) { return kGramSquares * Carver::bytes(a.n, a.n); }

int64_t orthogonalize_scratch(const OrthogonalizeArgs& a) {
  return a.options.method == Orthogonalizer::svd ? polar_scratch(a.rows, a.cols) : newton_schulz_scratch(a);
}

/// T: the type that matrices are held in.
template <class T>
void newton_schulz(ExecutionContext& ctx, const OrthogonalizeArgs& args, const float* in, float* out,
                   double squares) {
  constexpr bool kFloat = std::is_same_v<T, float>;
  const OrthogonalizeOptions& o = args.options;
  const bool tall = args.rows > args.cols;
  const int64_t m = std::min(args.rows, args.cols), n = std::max(args.rows, args.cols);
  Carver carver(ctx, newton_schulz_scratch(args));
  Iterated<T> it{m, n, carver.matrix<T>(m, n), carver.matrix<T>(m, n), {}};
  if constexpr (kFloat)
    if (!tall) it.last = {out, n};
  // Kernels only read `in`.
  const Block<float> source{const_cast<float*>(in), args.cols};
  scaled_copy(ctx, args.rows, args.cols, source, 1 / (std::sqrt(squares) + o.eps), tall, o.working, it.x);
  Block<T> result;
  if (o.form == IterationForm::gram) {
    if constexpr (kFloat) result = gram_form(ctx, o, it, carve_gram(carver, m));
  } else {
    const Block<T> g = carver.matrix<T>(m, m), polynomial = carver.matrix<T>(m, m);
    ProductScratch<T> scratch;
    if constexpr (!kFloat)
      scratch = {carver.matrix(1, scratch.sum_elements(m, n)).data,
                 carver.matrix<T>(1, scratch.packed_elements(m, n)).data};
    result = standard_form(ctx, o, it, g, polynomial, scratch);
  }
  if (tall || !kFloat) scaled_copy(ctx, m, n, result, 1, tall, DType::f32, Block<float>{out, args.cols});
}

void orthogonalize(ExecutionContext& ctx, const OrthogonalizeArgs& a) {
  const int64_t size = a.rows * a.cols;
  for (int64_t i = 0; i < a.batch; ++i) {
    const float* in = a.in + i * size;
    float* out = a.out + i * size;
    const double squares = sum_of_squares(ctx, in, size);
    const MatrixStatus status = status_of(squares);
    a.status[i] = static_cast<int32_t>(status);
    if (status != MatrixStatus::fine) {
      std::fill_n(out, size, 0.0f);
    } else if (a.options.method == Orthogonalizer::svd) {
      polar_factor(ctx, a.rows, a.cols, in, out);
    } else {
      in_bf16(a.options) ? newton_schulz<bf16>(ctx, a, in, out, squares)
                         : newton_schulz<float>(ctx, a, in, out, squares);
      if (!std::isfinite(sum_of_squares(ctx, out, size))) {  // the iteration overflowed
        std::fill_n(out, size, 0.0f);
        a.status[i] = static_cast<int32_t>(MatrixStatus::not_finite);
      }
    }
  }
}

void gram_product(ExecutionContext& ctx, const GramProductArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows, k = a.contract_rows ? a.rows : a.cols;
  for (int64_t i = 0; i < a.batch; ++i) {
    Block<float> x{const_cast<float*>(a.x) + i * n * k, a.cols};
    if (a.contract_rows) {
      Carver carver(ctx, gram_product_scratch(a));
      const Block<float> transposed = carver.matrix(n, k);
      scaled_copy(ctx, a.rows, a.cols, x, 1, true, DType::f32, transposed);
      x = transposed;
    }
    symmetric_product(ctx, n, k, x, x, true, {}, Block<float>{a.gram + i * n * n, n});
  }
}

void gram_iterate(ExecutionContext& ctx, const GramIterateArgs& a) {
  const std::span<const Coefficients> steps(a.options.steps.data() + a.first,
                                            static_cast<size_t>(a.last - a.first));
  const int64_t n = a.n;
  for (int64_t i = 0; i < a.batch; ++i) {
    const Block<float> gram{a.gram + i * n * n, n}, q{a.q + i * n * n, n};
    double factor = 1;
    if (a.first == 0) {
      double trace = 0;
      for (int64_t d = 0; d < n; ++d) trace += gram.data[d * n + d];
      const MatrixStatus status = status_of(trace);
      a.status[i] = static_cast<int32_t>(status);
      if (status != MatrixStatus::fine) {
        std::fill_n(q.data, n * n, 0.0f);
        continue;
      }
      factor = 1 / (std::sqrt(trace) + a.options.eps);
    }
    Carver carver(ctx, gram_iterate_scratch(a));
    const GramSquares squares = carve_gram(carver, n);
    scaled_copy(ctx, n, n, gram, factor * factor, false, a.options.working, squares.r);
    scaled_copy(ctx, n, n, iterate(ctx, n, squares, steps, a.options.working), factor, false, DType::f32, q);
    if (!std::isfinite(sum_of_squares(ctx, q.data, n * n))) {
      std::fill_n(q.data, n * n, 0.0f);
      if (a.status) a.status[i] = static_cast<int32_t>(MatrixStatus::not_finite);
    }
  }
}

void gram_apply(ExecutionContext& ctx, const GramApplyArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows, size = a.rows * a.cols;
  for (int64_t i = 0; i < a.batch; ++i) {
    const Block<float> x{const_cast<float*>(a.x) + i * size, a.cols},
        q{const_cast<float*>(a.q) + i * n * n, n};
    const Block<float> out{a.out + i * size, a.cols};
    if (std::all_of(q.data, q.data + n * n, [](float v) { return v == 0; })) {
      std::fill_n(out.data, size, 0.0f);
    } else {
      product(ctx, a.rows, a.cols, n, a.contract_rows ? x : q, a.contract_rows ? q : x, {}, out);
    }
  }
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const OrthogonalizeKernels* OrthogonalizeKernels::cpu() {
  static constexpr OrthogonalizeKernels table{
      .orthogonalize = cpu::orthogonalize,
      .gram_product = cpu::gram_product,
      .gram_iterate = cpu::gram_iterate,
      .gram_apply = cpu::gram_apply,
      .orthogonalize_scratch = cpu::orthogonalize_scratch,
      .gram_product_scratch = cpu::gram_product_scratch,
      .gram_iterate_scratch = cpu::gram_iterate_scratch,
  };
  return &table;
}

}  // namespace sherd
