// The door's part for Muon: momentum and update segments, orthogonalization and its Gram pieces.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <vector>

#include <sherd/kernels/ops/detail/door.h>

namespace sherd {

std::vector<std::string> problems_of(const OrthogonalizeOptions& o, bool gram) {
  std::vector<std::string> wrong;
  if (!(o.eps >= 0 && std::isfinite(o.eps)))
    wrong.push_back(fmt::format("eps {} must be finite and not negative", o.eps));
  if (o.working != DType::f32 && o.working != DType::bf16 && o.working != DType::f16)
    wrong.push_back(fmt::format("working dtype {} must be f32, bf16 or f16", name_of(o.working)));
  if (o.method == Orthogonalizer::newton_schulz) {
    const int steps = static_cast<int>(o.steps.size());
    if (steps == 0) wrong.push_back("no steps; give at least one row of coefficients");
    for (auto& [a, b, c] : o.steps)
      if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c))
        wrong.push_back(fmt::format("coefficients ({}, {}, {}) are not finite", a, b, c));
    for (size_t i = 0; i < o.restarts.size(); ++i)
      if (o.restarts[i] < 1 || o.restarts[i] >= steps || (i > 0 && o.restarts[i] <= o.restarts[i - 1])) {
        wrong.push_back(fmt::format("restarts {} must increase and lie in 1..{}", o.restarts, steps - 1));
        break;
      }
    if (gram && o.working == DType::bf16)
      wrong.push_back(
          "the gram form in bf16 has no bound on its error; use working dtype f16 or f32, or the standard "
          "form");
  }
  return wrong;
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

constexpr std::initializer_list<DType> kPayload = {DType::f32, DType::bf16, DType::f16};

/// Adds `count` elements from `at` of a buffer of `size` elements to the problems unless they lie inside.
void check_range(Check& check, const char* buffer, size_t segment, int64_t at, int64_t count, int64_t size) {
  if (count >= 0 && at >= 0 && count <= size && at <= size - count) return;
  check.that(false, fmt::format("segment {}: {} elements at {} lie outside {} of {} elements", segment, count,
                                at, buffer, size));
}

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

bool overlap(const Tensor& a, const Tensor& b) {
  const char *p = static_cast<const char*>(a.raw()), *q = static_cast<const char*>(b.raw());
  return a.nbytes() > 0 && b.nbytes() > 0 && p < q + b.nbytes() && q < p + a.nbytes();
}

void require_distinct(const char* op, const Tensor& out, const Tensor& in) {
  require(!overlap(out, in), fmt::format("{}: the output overlaps an input; use two tensors", op));
}

/// @throws InvalidArgument naming everything that is wrong with the options.
void check_options(const char* op, const OrthogonalizeOptions& o, bool gram) {
  const std::vector<std::string> wrong = problems_of(o, gram);
  require(wrong.empty(), fmt::format("{}: {}", op, fmt::join(wrong, "; ")));
}

}  // namespace

void muon_momentum(Stream& s, const Tensor& packed, std::span<const MomentumSegment> segments, float mu,
                   bool nesterov, float l2, const Tensor& skip) {
  Check check("muon_momentum");
  check.dtype("packed", packed, kPayload).done();
  check_skip(check, skip);
  for (size_t i = 0; i < segments.size(); ++i) {
    const MomentumSegment& m = segments[i];
    check_range(check, "packed", i, m.at == -1 ? 0 : m.at, m.at == -1 ? 0 : m.count, packed.numel());
    check.that(m.count >= 0, fmt::format("segment {}: count {} is negative", i, m.count));
    if (m.count > 0 && (!m.buffer || !m.gradient || (l2 != 0 && !m.weight)))
      check.that(false, fmt::format("segment {}: buffer, gradient or (with l2) weight is null", i));
  }
  check.done();
  require(mu >= 0 && mu <= 1, fmt::format("muon_momentum: mu {} must lie in [0, 1]", mu));
  require(std::isfinite(l2), fmt::format("muon_momentum: l2 {} must be finite", l2));
  queue(s, "muon_momentum", kernels(s).muon_momentum,
        MuonMomentumArgs{
            {segments.begin(), segments.end()}, ref(packed), mu, nesterov, l2, pointer<int64_t>(skip)});
}

void muon_update(Stream& s, std::span<const UpdateSegment> segments, const Tensor& packed,
                 const Tensor& skip) {
  Check check("muon_update");
  check.dtype("packed", packed, kPayload).done();
  check_skip(check, skip);
  for (size_t i = 0; i < segments.size(); ++i) {
    check_range(check, "packed", i, segments[i].at, segments[i].count, packed.numel());
    if (segments[i].count > 0 && !segments[i].weight)
      check.that(false, fmt::format("segment {}: weight is null", i));
  }
  check.done();
  queue(s, "muon_update", kernels(s).muon_update,
        MuonUpdateArgs{{segments.begin(), segments.end()}, ref(packed), pointer<int64_t>(skip)});
}

void copy_segments(Stream& s, const Tensor& to, const Tensor& from, std::span<const CopySegment> segments) {
  Check check("copy_segments");
  check.dtype("to", to, kPayload).dtype("from", from, kPayload).done();
  int64_t total = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    check_range(check, "to", i, segments[i].to, segments[i].count, to.numel());
    check_range(check, "from", i, segments[i].from, segments[i].count, from.numel());
    total += segments[i].count;
  }
  check.done();
  require_distinct("copy_segments", to, from);
  s.device().count_copy(total * size_of(from.dtype()));
  queue(s, "copy_segments", kernels(s).copy_segments,
        CopySegmentsArgs{{segments.begin(), segments.end()}, ref(to), ref(from)});
}

void orthogonalize(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status,
                   const OrthogonalizeOptions& options) {
  Check check("orthogonalize");
  const auto [batch, rows, cols] = matrices(check, "in", in);
  check.dtype("in", in, DType::f32).dtype("out", out, DType::f32).dtype("status", status, DType::i32);
  check.shape("out", out, in.shape()).count("status", status, batch).done();
  require_distinct("orthogonalize", out, in);
  check_options("orthogonalize", options, options.form == IterationForm::gram);
  OrthogonalizeArgs a{.batch = batch, .rows = rows, .cols = cols, .options = options};
  a.in = in.data<float>();
  a.out = out.data<float>();
  a.status = status.data<int32_t>();
  queue(s, "orthogonalize", kernels(s).orthogonalize, a);
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
  queue(s, "gram_product", kernels(s).gram_product,
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
  queue(s, "gram_iterate", kernels(s).gram_iterate, a);
}

void gram_apply(Stream& s, const Tensor& out, const Tensor& x, const Tensor& q, bool contract_rows) {
  Check check("gram_apply");
  const auto [batch, rows, cols] = matrices(check, "x", x);
  const int64_t n = contract_rows ? cols : rows;
  check.dtype("x", x, DType::f32).dtype("q", q, DType::f32).dtype("out", out, DType::f32);
  check.shape("q", q, shape_of(x, n, n)).shape("out", out, x.shape()).done();
  require_distinct("gram_apply", out, x);
  require_distinct("gram_apply", out, q);
  queue(s, "gram_apply", kernels(s).gram_apply,
        GramApplyArgs{batch, rows, cols, contract_rows, x.data<float>(), q.data<float>(), out.data<float>()});
}

}  // namespace sherd::ops
