#include <sherd/kernels/orthogonalize/orthogonalize.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <sherd/kernels/device/detail/door.h>

namespace sherd {
namespace {

template <class Args>
int64_t requested(int64_t (*scratch)(const Args&), const Args& a) {
  return scratch != nullptr ? scratch(a) : 0;
}

/// Elements of the f32 matrices that are read and written once.
int64_t passes(int64_t batch, int64_t elements) {
  return batch * elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace

double standard_flops(double s, double l, int steps) { return steps * (3 * s * s * l + s * s * s); }

double gram_flops(double s, double l, int steps, int restarts) {
  const double runs = 1 + restarts;
  return 3 * s * s * l * runs + s * s * s * (4 * steps - 3 * runs);
}

/// Width: the short side. The Gram form multiplies matrices of that size; the standard form reaches its rate at twice the side
/// (docs/gpu-results.md, "Newton-Schulz").
Work work_of(const Device& device, const OrthogonalizeArgs& a) {
  const OrthogonalizeOptions& o = a.options;
  const auto s = static_cast<double>(std::min(a.rows, a.cols)),
             l = static_cast<double>(std::max(a.rows, a.cols));
  const int steps = static_cast<int>(o.steps.size()), restarts = static_cast<int>(o.restarts.size());
  const double one =
      o.form == IterationForm::gram ? gram_flops(s, l, steps, restarts) : standard_flops(s, l, steps);
  return {.flops = static_cast<double>(a.batch) * one,
          .bytes = passes(a.batch, 2 * a.rows * a.cols),
          .scratch = requested(device.kernels<OrthogonalizeKernels>().orthogonalize_scratch, a),
          .dtype = o.working,
          .width = static_cast<int64_t>(o.form == IterationForm::gram ? s : 2 * s)};
}

Work work_of(const Device& device, const GramProductArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows, size = a.rows * a.cols;
  return {.flops = static_cast<double>(a.batch) * static_cast<double>(n) * static_cast<double>(size),
          .bytes = passes(a.batch, size + n * n),
          .scratch = requested(device.kernels<OrthogonalizeKernels>().gram_product_scratch, a),
          .width = n};
}

Work work_of(const Device& device, const GramIterateArgs& a) {
  const auto n = static_cast<double>(a.n);
  return {.flops = static_cast<double>(a.batch) * gram_flops(n, 0, a.last - a.first, 0),
          .bytes = passes(a.batch, 2 * a.n * a.n),
          .scratch = requested(device.kernels<OrthogonalizeKernels>().gram_iterate_scratch, a),
          .dtype = a.options.working,
          .width = a.n};
}

Work work_of(const Device&, const GramApplyArgs& a) {
  const int64_t n = a.contract_rows ? a.cols : a.rows, size = a.rows * a.cols;
  return {.flops = 2.0 * static_cast<double>(a.batch) * static_cast<double>(n) * static_cast<double>(size),
          .bytes = passes(a.batch, 2 * size + n * n),
          .width = n};
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

/// Sizes of a tensor that is one matrix or a batch of matrices.
struct Matrices {
  int64_t batch, rows, cols;
};

Matrices matrices(Check& check, const char* name, const Tensor& t) {
  const bool defined = t.defined();
  check.that(defined, fmt::format("{} is undefined", name)).done();
  check
      .that(t.dim() == 2 || t.dim() == 3,
            fmt::format("{} is {}, must be [rows, cols] or [batch, rows, cols]", name, to_string(t.shape())))
      .done();
  const int64_t d = t.dim();
  return {d == 3 ? t.size(0) : 1, t.size(d - 2), t.size(d - 1)};
}

/// `like`, with other matrices inside.
Shape shape_of(const Tensor& like, int64_t rows, int64_t cols) {
  return like.dim() == 3 ? Shape{like.size(0), rows, cols} : Shape{rows, cols};
}

/// @throws InvalidArgument naming everything that is wrong with the options.
void check_options(const char* op, const OrthogonalizeOptions& o, bool gram) {
  const std::vector<std::string> wrong = problems_of(o, gram);
  require(wrong.empty(), fmt::format("{}: {}", op, fmt::join(wrong, "; ")));
}

}  // namespace

void orthogonalize(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status,
                   const OrthogonalizeOptions& options) {
  Check check("orthogonalize");
  const auto [batch, rows, cols] = matrices(check, "in", in);
  check.dtype("in", in, DType::f32).dtype("out", out, DType::f32).dtype("status", status, DType::i32);
  check.shape("out", out, in.shape()).count("status", status, batch).done();
  require_distinct("orthogonalize", out, in);
  check_options("orthogonalize", options, options.form != IterationForm::standard);
  OrthogonalizeArgs a{.batch = batch, .rows = rows, .cols = cols, .options = options};
  a.options.form = form_for(options, rows, cols);
  a.in = in.data<float>();
  a.out = out.data<float>();
  a.status = status.data<int32_t>();
  queue(s, {"orthogonalize", WorkKind::orthogonalize}, kernels<OrthogonalizeKernels>(s).orthogonalize, a);
}

void gram_product(Stream& s, const Tensor& gram, const Tensor& x, bool contract_rows) {
  Check check("gram_product");
  const auto [batch, rows, cols] = matrices(check, "x", x);
  const int64_t n = contract_rows ? cols : rows;
  check.dtype("x", x, DType::f32)
      .dtype("gram", gram, DType::f32)
      .shape("gram", gram, shape_of(x, n, n))
      .done();
  require_distinct("gram_product", gram, x);
  queue(s, {"gram_product", WorkKind::orthogonalize}, kernels<OrthogonalizeKernels>(s).gram_product,
        GramProductArgs{batch, rows, cols, contract_rows, x.data<float>(), gram.data<float>()});
}

void gram_iterate(Stream& s, const Tensor& q, const Tensor& gram, const Tensor& status, int first, int last,
                  const OrthogonalizeOptions& options) {
  Check check("gram_iterate");
  const auto [batch, n, cols] = matrices(check, "gram", gram);
  check.dtype("gram", gram, DType::f32).dtype("q", q, DType::f32).shape("q", q, gram.shape());
  check.that(n == cols, fmt::format("gram is {}, must be square", to_string(gram.shape())));
  if (first == 0) check.dtype("status", status, DType::i32).count("status", status, batch);
  check.done();
  require_distinct("gram_iterate", q, gram);
  require(options.method == Orthogonalizer::newton_schulz,
          "gram_iterate: only newton_schulz iterates; svd needs the whole matrix");
  check_options("gram_iterate", options, true);
  const int steps = static_cast<int>(options.steps.size());
  require(0 <= first && first < last && last <= steps,
          fmt::format("gram_iterate: steps [{}, {}) must be a range of the {} steps", first, last, steps));
  for (int r : options.restarts)
    require(r <= first || r >= last,
            fmt::format("gram_iterate: steps [{}, {}) go past the restart after step {}; iterate up to it, "
                        "apply, and form the Gram matrix anew",
                        first, last, r));
  GramIterateArgs a{.batch = batch, .n = n, .first = first, .last = last, .options = options};
  a.q = q.data<float>();
  a.gram = gram.data<float>();
  a.status = first == 0 ? status.data<int32_t>() : nullptr;
  queue(s, {"gram_iterate", WorkKind::orthogonalize}, kernels<OrthogonalizeKernels>(s).gram_iterate, a);
}

void gram_apply(Stream& s, const Tensor& out, const Tensor& x, const Tensor& q, bool contract_rows) {
  Check check("gram_apply");
  const auto [batch, rows, cols] = matrices(check, "x", x);
  const int64_t n = contract_rows ? cols : rows;
  check.dtype("x", x, DType::f32).dtype("q", q, DType::f32).dtype("out", out, DType::f32);
  check.shape("q", q, shape_of(x, n, n)).shape("out", out, x.shape()).done();
  require_distinct("gram_apply", out, x);
  require_distinct("gram_apply", out, q);
  queue(s, {"gram_apply", WorkKind::orthogonalize}, kernels<OrthogonalizeKernels>(s).gram_apply,
        GramApplyArgs{batch, rows, cols, contract_rows, x.data<float>(), q.data<float>(), out.data<float>()});
}

}  // namespace sherd::ops
