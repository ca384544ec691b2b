#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include <sherd/kernels/ops/detail/door.h>
#include <sherd/kernels/ops/random.h>

namespace sherd {

std::string bad_index(const char* op, const char* what, int32_t index, int64_t position, int64_t bound) {
  const std::string_view name = what;
  return fmt::format(
      "{}: {} {} at position {} lies outside [0, {}){}", op, what, index, position, bound,
      name == "token" || name == "target" ? "; was the data written with another tokenizer?" : "");
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

namespace {

/// Where data from the host waits for its stream: counted in Device::copies(), bounded by RunAhead. May wait.
std::shared_ptr<char> host_block(Device& device, int64_t bytes) {
  struct Return {
    Device& device;
    int64_t bytes;
    void operator()(char* block) const {
      device.copies().release(block, true);
      device.run_ahead().give(bytes);
    }
  };
  device.run_ahead().take(bytes);
  char* block = nullptr;
  try {
    block = static_cast<char*>(
        device.copies().allocate(bytes, MemoryClass::scratch, "copies from the host", true));
  } catch (...) {
    device.run_ahead().give(bytes);
    throw;
  }
  return {block, Return{device, bytes}};
}

}  // namespace

void fill(Stream& s, const Tensor& dst, double value) {
  Check("fill").that(dst.defined(), "dst is undefined").done();
  queue(s, "fill", kernels(s).fill, ref(dst), dst.numel(), value);
}

void copy(Stream& s, const Tensor& dst, const Tensor& src) {
  Check check("copy");
  check.that(dst.defined() && src.defined(), "dst or src is undefined").done();
  check.dtype("dst", dst, src.dtype()).count("dst", dst, src.numel()).done();
  if (dst.raw() == src.raw()) return;
  s.device().count_copy(src.nbytes());
  queue(s, "copy", kernels(s).copy, dst.raw(), src.raw(), src.nbytes());
}

void copy_from_host(Stream& s, const Tensor& dst, const void* src, int64_t bytes) {
  Check check("copy_from_host");
  check.that(dst.defined(), "dst is undefined").done();
  check.that(dst.nbytes() == bytes, fmt::format("dst has {} bytes, {} are given", dst.nbytes(), bytes))
      .done();
  const auto host = host_block(s.device(), bytes);
  if (bytes > 0) std::memcpy(host.get(), src, static_cast<size_t>(bytes));
  s.submit("copy_from_host", [f = kernels(s).copy, to = dst.raw(), host, bytes](ExecutionContext& c) {
    f(c, to, host.get(), bytes);
    c.keep(host);
  });
}

void copy_to_host(Stream& s, void* dst, const Tensor& src) {
  Check("copy_to_host").that(src.defined(), "src is undefined").done();
  queue(s, "copy_to_host", kernels(s).copy, dst, src.raw(), src.nbytes());
  s.synchronize();
}

std::vector<float> to_floats(Stream& s, const Tensor& src) {
  Check("to_floats").dtype("src", src, {DType::f32, DType::bf16, DType::f16}).done();
  std::vector<float> out(static_cast<size_t>(src.numel()));
  if (src.dtype() == DType::f32) {
    copy_to_host(s, out.data(), src);
    return out;
  }
  std::vector<uint16_t> bits(out.size());
  copy_to_host(s, bits.data(), src);
  std::transform(bits.begin(), bits.end(), out.begin(), [&](uint16_t b) {
    return src.dtype() == DType::bf16 ? float(std::bit_cast<bf16>(b)) : float(std::bit_cast<f16>(b));
  });
  return out;
}

void cast(Stream& s, const Tensor& dst, const Tensor& src) {
  Check("cast").dtype("dst", dst, kFloats).dtype("src", src, kFloats).count("dst", dst, src.numel()).done();
  queue(s, "cast", kernels(s).cast, ref(dst), ref(src), src.numel());
}

void scale(Stream& s, const Tensor& x, float factor) {
  Check("scale").dtype("x", x, kActivations).done();
  queue(s, "scale", kernels(s).scale, ref(x), x.numel(), factor);
}

void scaled_add(Stream& s, const Tensor& dst, float alpha, const Tensor& src) {
  Check check("scaled_add");
  check.dtype("dst", dst, DType::f32).dtype("src", src, kActivations).count("src", src, dst.numel()).done();
  queue(s, "scaled_add", kernels(s).scaled_add, dst.data<float>(), alpha, ref(src), dst.numel());
}

void scale_and_add(Stream& s, const Tensor& dst, float decay, float alpha, const Tensor& src) {
  Check check("scale_and_add");
  check.dtype("dst", dst, DType::f32).dtype("src", src, DType::f32).count("src", src, dst.numel()).done();
  queue(s, "scale_and_add", kernels(s).scale_and_add, dst.data<float>(), decay, alpha, src.data<float>(),
        dst.numel());
}

void add(Stream& s, const Tensor& out, const Tensor& a, const Tensor& b) {
  Check check("add");
  check.dtype("out", out, kActivations).done();
  check.dtype("a", a, out.dtype()).dtype("b", b, out.dtype());
  check.count("a", a, out.numel()).count("b", b, out.numel()).done();
  queue(s, "add", kernels(s).add, ref(out), ref(a), ref(b), out.numel());
}

namespace {

GemmArgs gemm_args(Check& check, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b,
                   bool trans_b) {
  check.dims("A", a, 2).dims("B", b, 2).dims("C", c, 2).dtype("A", a, kActivations).dtype("B", b, a.dtype());
  GemmArgs g{.trans_a = trans_a, .trans_b = trans_b, .a = ref(a), .b = ref(b), .c = ref(c)};
  g.m = a.size(trans_a ? 1 : 0);
  g.k = a.size(trans_a ? 0 : 1);
  g.n = b.size(trans_b ? 0 : 1);
  g.lda = std::max<int64_t>(1, a.size(1));
  g.ldb = std::max<int64_t>(1, b.size(1));
  g.ldc = std::max<int64_t>(1, g.n);
  check.that(b.size(trans_b ? 1 : 0) == g.k,
             fmt::format("op(A) op(B) do not fit: A {}{}, B {}{}", to_string(a.shape()), trans_a ? "^T" : "",
                         to_string(b.shape()), trans_b ? "^T" : ""));
  check.shape("C", c, {g.m, g.n});
  return g;
}

}  // namespace

void gemm(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
          float alpha, float beta) {
  Check check("gemm");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, {DType::f32, a.dtype()}).done();
  g.alpha = alpha;
  g.beta = beta;
  queue(s, "gemm", kernels(s).gemm, g);
}

void gemm_bias(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
               const Tensor& bias) {
  Check check("gemm_bias");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype()).dtype("bias", bias, a.dtype()).count("bias", bias, g.n).done();
  g.bias = ref(bias);
  queue(s, "gemm_bias", kernels(s).gemm, g);
}

void gemm_gelu(Stream& s, const Tensor& c, const Tensor& pre, const Tensor& a, bool trans_a, const Tensor& b,
               bool trans_b, const Tensor& bias) {
  Check check("gemm_gelu");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype());
  if (pre.defined()) check.dtype("pre", pre, a.dtype()).shape("pre", pre, c.shape());
  if (bias.defined()) check.dtype("bias", bias, a.dtype()).count("bias", bias, g.n);
  check.done();
  require(!pre.defined() || pre.numel() == 0 || pre.raw() != c.raw(),
          "gemm_gelu: C and pre are the same tensor; use two, or leave pre undefined");
  g.gelu = true;
  if (pre.defined()) g.pre = ref(pre);
  if (bias.defined()) g.bias = ref(bias);
  queue(s, "gemm_gelu", kernels(s).gemm, g);
}

void gemm_add(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
              const Tensor& residual) {
  Check check("gemm_add");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype()).dtype("residual", residual, a.dtype());
  check.shape("residual", residual, c.shape()).done();
  require(c.numel() == 0 || residual.raw() != c.raw(),
          "gemm_add: C and the residual are the same tensor; use two, or gemm with beta 1");
  g.residual = ref(residual);
  queue(s, "gemm_add", kernels(s).gemm, g);
}

void gemm_gelu_backward(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b,
                        bool trans_b, const Tensor& pre) {
  Check check("gemm_gelu_backward");
  GemmArgs g = gemm_args(check, c, a, trans_a, b, trans_b);
  check.dtype("C", c, a.dtype()).dtype("pre", pre, a.dtype()).shape("pre", pre, c.shape()).done();
  require(c.numel() == 0 || pre.raw() != c.raw(),
          "gemm_gelu_backward: C and pre are the same tensor; use two");
  g.gelu_backward = true;
  g.pre = ref(pre);
  queue(s, "gemm_gelu_backward", kernels(s).gemm, g);
}

void rms_norm_forward(Stream& s, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      float eps) {
  Check check("rms_norm_forward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("y", y, x.dtype()).dtype("w", w, x.dtype());
  check.dtype("rstd", rstd, DType::f32).shape("y", y, x.shape());
  check.count("w", w, x.size(1)).count("rstd", rstd, x.size(0)).done();
  RmsNormArgs r{.rows = x.size(0), .cols = x.size(1), .eps = eps, .x = ref(x), .w = ref(w), .y = ref(y)};
  r.rstd = rstd.data<float>();
  queue(s, "rms_norm_forward", kernels(s).rms_norm_forward, r);
}

void rms_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                       const Tensor& w, const Tensor& rstd) {
  Check check("rms_norm_backward");
  check.dims("x", x, 2).dtype("x", x, kActivations).dtype("w", w, x.dtype());
  check.dtype("dy", dy, x.dtype())
      .dtype("dx", dx, x.dtype())
      .dtype("dw", dw, DType::f32)
      .dtype("rstd", rstd, DType::f32);
  check.shape("dy", dy, x.shape()).shape("dx", dx, x.shape());
  check.count("w", w, x.size(1)).count("dw", dw, x.size(1)).count("rstd", rstd, x.size(0)).done();
  RmsNormArgs r{.rows = x.size(0), .cols = x.size(1), .x = ref(x), .w = ref(w)};
  r.rstd = rstd.data<float>();
  r.dy = ref(dy);
  r.dx = ref(dx);
  r.dw = dw.data<float>();
  queue(s, "rms_norm_backward", kernels(s).rms_norm_backward, r);
}

namespace {

AttentionArgs attention_args(Check& check, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                             int64_t batch, int64_t heads) {
  check.dims("qkv", qkv, 2)
      .dtype("qkv", qkv, kActivations)
      .dtype("out", out, qkv.dtype())
      .dtype("lse", lse, DType::f32);
  require(batch > 0 && heads > 0,
          fmt::format("attention: batch {} and heads {} must be positive", batch, heads));
  check.that(
      qkv.size(0) % batch == 0 && qkv.size(1) % (3 * heads) == 0,
      fmt::format("qkv is {}, must be [{} x seq, 3 x {} x head_dim]", to_string(qkv.shape()), batch, heads));
  check.done();
  AttentionArgs a{
      .batch = batch, .seq = qkv.size(0) / batch, .heads = heads, .head_dim = qkv.size(1) / (3 * heads)};
  check.shape("out", out, {batch * a.seq, heads * a.head_dim}).shape("lse", lse, {batch, heads, a.seq});
  a.qkv = ref(qkv);
  a.out = ref(out);
  a.lse = lse.data<float>();
  return a;
}

}  // namespace

void attention_forward(Stream& s, const Tensor& out, const Tensor& lse, const Tensor& qkv, int64_t batch,
                       int64_t heads) {
  Check check("attention_forward");
  const AttentionArgs a = attention_args(check, out, lse, qkv, batch, heads);
  check.done();
  queue(s, "attention_forward", kernels(s).attention_forward, a);
}

void attention_backward(Stream& s, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, int64_t batch, int64_t heads) {
  Check check("attention_backward");
  AttentionArgs a = attention_args(check, out, lse, qkv, batch, heads);
  check.dtype("dout", dout, qkv.dtype()).dtype("dqkv", dqkv, qkv.dtype());
  check.shape("dout", dout, out.shape()).shape("dqkv", dqkv, qkv.shape()).done();
  a.dout = ref(dout);
  a.dqkv = ref(dqkv);
  queue(s, "attention_backward", kernels(s).attention_backward, a);
}

void gelu_forward(Stream& s, const Tensor& y, const Tensor& x) {
  Check check("gelu_forward");
  check.dtype("x", x, kActivations).done();
  check.dtype("y", y, x.dtype()).count("y", y, x.numel()).done();
  queue(s, "gelu_forward", kernels(s).gelu_forward, ref(y), ref(x), x.numel());
}

void gelu_backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  Check check("gelu_backward");
  check.dtype("x", x, kActivations).done();
  check.dtype("dx", dx, x.dtype()).dtype("dy", dy, x.dtype());
  check.count("dx", dx, x.numel()).count("dy", dy, x.numel()).done();
  queue(s, "gelu_backward", kernels(s).gelu_backward, ref(dx), ref(dy), ref(x), x.numel());
}

void embedding_forward(Stream& s, const Tensor& out, const Tensor& tokens, const Tensor& table,
                       const Tensor& positions) {
  Check check("embedding_forward");
  check.dims("tokens", tokens, 2).dims("table", table, 2);
  check.dtype("tokens", tokens, DType::i32)
      .dtype("table", table, kActivations)
      .dtype("out", out, table.dtype());
  EmbeddingArgs e{
      .count = tokens.numel(), .seq = tokens.size(1), .width = table.size(1), .vocab = table.size(0)};
  check.shape("out", out, {e.count, e.width});
  if (positions.defined()) {
    check.dims("positions", positions, 2).dtype("positions", positions, table.dtype());
    check.that(positions.size(0) >= e.seq && positions.size(1) == e.width,
               fmt::format("positions is {}, must be [at least {}, {}]", to_string(positions.shape()), e.seq,
                           e.width));
    e.positions = ref(positions);
  }
  check.done();
  e.tokens = tokens.data<int32_t>();
  e.table = ref(table);
  e.out = ref(out);
  queue(s, "embedding_forward", kernels(s).check_indices, "embedding_forward", "token", e.tokens, e.count,
        e.vocab);
  queue(s, "embedding_forward", kernels(s).embedding_forward, e);
}

void embedding_backward(Stream& s, const Tensor& dtable, const Tensor& dpositions, const Tensor& dout,
                        const Tensor& tokens) {
  Check check("embedding_backward");
  check.dims("tokens", tokens, 2).dims("dtable", dtable, 2);
  check.dtype("tokens", tokens, DType::i32)
      .dtype("dtable", dtable, DType::f32)
      .dtype("dout", dout, kActivations);
  EmbeddingArgs e{
      .count = tokens.numel(), .seq = tokens.size(1), .width = dtable.size(1), .vocab = dtable.size(0)};
  check.shape("dout", dout, {e.count, e.width});
  if (dpositions.defined()) {
    check.dims("dpositions", dpositions, 2).dtype("dpositions", dpositions, DType::f32);
    check.that(dpositions.size(0) >= e.seq && dpositions.size(1) == e.width,
               fmt::format("dpositions is {}, must be [at least {}, {}]", to_string(dpositions.shape()),
                           e.seq, e.width));
  }
  check.done();
  e.tokens = tokens.data<int32_t>();
  e.dout = ref(dout);
  e.dtable = dtable.data<float>();
  e.dpositions = pointer<float>(dpositions);
  queue(s, "embedding_backward", kernels(s).check_indices, "embedding_backward", "token", e.tokens, e.count,
        e.vocab);
  queue(s, "embedding_backward", kernels(s).embedding_backward, e);
}

namespace {

// What the entries of cross-entropy share. Losses and dlogits are checked and set where they are asked for.
void cross_entropy(Stream& s, const char* op, void (*kernel)(ExecutionContext&, const CrossEntropyArgs&),
                   const Tensor* losses, const Tensor* dlogits, const Tensor& logits, const Tensor& targets,
                   float scale) {
  Check check(op);
  check.dims("logits", logits, 2).dtype("logits", logits, kActivations).dtype("targets", targets, DType::i32);
  check.count("targets", targets, logits.size(0));
  if (losses) check.dtype("losses", *losses, DType::f32).count("losses", *losses, logits.size(0));
  if (dlogits) check.dtype("dlogits", *dlogits, logits.dtype()).shape("dlogits", *dlogits, logits.shape());
  check.done();
  CrossEntropyArgs a{.rows = logits.size(0), .vocab = logits.size(1), .logits = ref(logits)};
  a.targets = targets.data<int32_t>();
  if (losses) a.losses = losses->data<float>();
  if (dlogits) a.dlogits = ref(*dlogits);
  a.scale = scale;
  queue(s, op, kernels(s).check_indices, op, "target", a.targets, a.rows, a.vocab);
  queue(s, op, kernel, a);
}

}  // namespace

void cross_entropy_forward(Stream& s, const Tensor& losses, const Tensor& logits, const Tensor& targets) {
  cross_entropy(s, "cross_entropy_forward", kernels(s).cross_entropy_forward, &losses, nullptr, logits,
                targets, 1);
}

void cross_entropy_backward(Stream& s, const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                            float scale) {
  cross_entropy(s, "cross_entropy_backward", kernels(s).cross_entropy_backward, nullptr, &dlogits, logits,
                targets, scale);
}

void cross_entropy_forward_backward(Stream& s, const Tensor& losses, const Tensor& dlogits,
                                    const Tensor& logits, const Tensor& targets, float scale) {
  cross_entropy(s, "cross_entropy_forward_backward", kernels(s).cross_entropy_forward_backward, &losses,
                &dlogits, logits, targets, scale);
}

void strided_copy(Stream& s, const Tensor& dst, int64_t dst_stride, const Tensor& src, int64_t src_stride,
                  int64_t blocks, int64_t run) {
  Check check("strided_copy");
  check.that(dst.defined() && src.defined(), "dst or src is undefined").done();
  check.dtype("dst", dst, src.dtype());
  const auto fits = [&](const Tensor& t, int64_t stride) {
    return stride >= 0 && (blocks - 1) * stride + run <= t.numel();
  };
  if (blocks > 0 && run > 0)
    check.that(fits(dst, dst_stride) && fits(src, src_stride),
               fmt::format("{} runs of {} elements leave dst {} (stride {}) or src {} (stride {})", blocks,
                           run, to_string(dst.shape()), dst_stride, to_string(src.shape()), src_stride));
  check.done();
  if (blocks <= 0 || run <= 0) return;
  const int64_t e = size_of(src.dtype());
  s.device().count_copy(blocks * run * e);
  queue(s, "strided_copy", kernels(s).strided_copy,
        StridedCopyArgs{static_cast<char*>(dst.raw()), static_cast<const char*>(src.raw()), dst_stride * e,
                        src_stride * e, blocks, run * e});
}

void accumulate_sum(Stream& s, const Tensor& out, const Tensor& x) {
  Check("accumulate_sum").dtype("out", out, DType::f64).dtype("x", x, DType::f32).count("out", out, 1).done();
  queue(s, "accumulate_sum", kernels(s).accumulate_sum, out.data<double>(), x.data<float>(), x.numel());
}

void random_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                   float mean, float stddev) {
  Check("random_normal").dtype("dst", dst, DType::f32).done();
  require(begin >= 0, fmt::format("random_normal of '{}': first element {} is negative", name, begin));
  queue(s, "random_normal", kernels(s).random_normal, dst.data<float>(), begin, dst.numel(),
        hash64(seed, name), mean, stddev);
}

}  // namespace sherd::ops
