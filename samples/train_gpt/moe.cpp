#include "moe.h"

#include <numeric>

#include <sherd/kernels/ops/ops.h>


namespace train_gpt {

using sherd::DType;
using sherd::Stream;
namespace ops = sherd::ops;
namespace {

Tensor make(const Tensor& beside, Shape shape, DType dtype) {
  return Tensor::empty(beside.device(), std::move(shape), dtype, "activations");
}

// Matrix (or vector) e of a stack.
Tensor of(const Tensor& stack, int64_t e) {
  return stack.rows(e, e + 1).view({stack.shape().begin() + 1, stack.shape().end()});
}

Tensor permuted(Stream& s, const Tensor& rows, const Tensor& order) {
  if (!order.defined()) return rows;
  Tensor out = make(rows, rows.shape(), rows.dtype());
  ops::expand_rows(s, out, rows, order, {});
  return out;
}

}  // namespace

ExpertParallel ExpertParallel::of(const sherd::DeviceMesh& mesh) {
  return {mesh.size("expert"), mesh.coordinate("expert"), mesh.comm("expert"),
          mesh.flatten({"expert_shard", "expert"})->clone()};
}

Experts::Experts(int64_t dim, float fc_std, float out_std, const MoeShape& shape,
                 const ExpertParallel& parallel) {
  const int64_t n = parallel.share(shape.experts), hidden = 4 * dim;
  const auto piece = [&](const char* name, Shape local, sherd::Init init) {
    return param(name, std::move(local), init)
        .set_tensor_shard({"expert", 0, parallel.parts, parallel.index});
  };
  fc_ = piece("fc.weight", {n, hidden, dim}, sherd::normal(fc_std));
  fc_bias_ = piece("fc.bias", {n, hidden}, sherd::constant(0));
  out_ = piece("out.weight", {n, dim, hidden}, sherd::normal(out_std));
  out_bias_ = piece("out.bias", {n, dim}, sherd::constant(0));
}

Tensor Experts::forward(const Tensor& x) {
  Stream& s = x.device().compute();
  const int64_t hidden = fc_.shape()[1];
  Saved v{x, make(x, {x.size(0), hidden}, x.dtype()), make(x, {x.size(0), hidden}, x.dtype()), offsets_};
  const auto layer = [&](const Tensor& out, const Tensor& in, const Parameter& w, const Parameter& bias) {
    for (int64_t e = 0; e < w.shape()[0]; ++e) {
      const int64_t begin = offsets_[static_cast<size_t>(e)], end = offsets_[static_cast<size_t>(e + 1)];
      if (begin == end) continue;
      ops::gemm_bias(s, out.rows(begin, end), in.rows(begin, end), false, of(w.data(), e), true,
                     of(bias.data(), e));
    }
  };
  layer(v.h, x, fc_, fc_bias_);
  ops::gelu_forward(s, v.a, v.h);
  const Tensor y = make(x, x.shape(), x.dtype());
  layer(y, v.a, out_, out_bias_);
  if (training()) saved_.push_back(std::move(v));
  return y;
}

Tensor Experts::backward(const Tensor& dy) {
  Stream& s = dy.device().compute();
  const Saved v = std::move(saved_.back());
  saved_.pop_back();
  const auto layer = [&](const Tensor& din, const Tensor& dout, const Tensor& in, const Parameter& w,
                         const Parameter& bias) {
    const auto [dw, beta] = w.grad_for_overwrite();
    const Tensor dbias = bias.grad();  // also where no row came
    for (int64_t e = 0; e < w.shape()[0]; ++e) {
      const int64_t begin = v.offsets[static_cast<size_t>(e)], end = v.offsets[static_cast<size_t>(e + 1)];
      if (begin == end) {
        if (beta == 0) ops::fill(s, of(dw, e), 0);
        continue;
      }
      const Tensor d = dout.rows(begin, end);
      ops::gemm(s, of(dw, e), d, true, in.rows(begin, end), false, 1, beta);
      ops::bias_backward(s, of(dbias, e), d);
      ops::gemm(s, din.rows(begin, end), d, false, of(w.data(), e), false);
    }
  };
  const Tensor dh = make(dy, v.h.shape(), dy.dtype()), dx = make(dy, v.x.shape(), dy.dtype());
  layer(dh, dy, v.a, out_, out_bias_);
  ops::gelu_backward(s, dh, dh, v.h);
  layer(dx, dh, v.x, fc_, fc_bias_);
  return dx;
}

MoeMlp::MoeMlp(int64_t dim, float fc_std, float out_std, const MoeShape& shape,
               const ExpertParallel& parallel)
    : shape_(shape), parallel_(parallel), dim_(dim), experts_(dim, fc_std, out_std, shape, parallel) {
  router_ = param("router.weight", {shape.experts, dim}, sherd::normal(fc_std));
  child("experts", experts_);
}

bool MoeMlp::counts_everywhere() const {
  return shape_.balance != 0 && parallel_.all && parallel_.all->size() > 1;
}

MoeMlp::Exchange MoeMlp::plan(const Tensor& counts) {
  Stream& s = counts.device().compute();
  const auto parts = static_cast<size_t>(parallel_.parts);
  const auto local = static_cast<size_t>(parallel_.share(shape_.experts));
  const auto to_host = [&](const Tensor& on_device) {
    Tensor host = Tensor::host(counts.device(), counts.shape(), counts.dtype(), "activations");
    ops::copy(s, host, on_device);
    return host;
  };
  // [part][local expert]: rows that go there, rows that come from there.
  const Tensor going = to_host(counts);
  Tensor coming = going;
  if (parts > 1) {
    const std::vector<int64_t> each(parts, static_cast<int64_t>(local));
    const Tensor arriving = make(counts, counts.shape(), counts.dtype());
    parallel_.comm->all_to_all_v(s, arriving.unowned_view(), each, counts.unowned_view(), each);
    coming = to_host(arriving);
  }
  s.synchronize();  // the one wait of a step: what follows has sizes that only the device knows
  const int32_t *go = going.data<int32_t>(), *come = coming.data<int32_t>();
  Exchange x;
  x.offsets.assign(local + 1, 0);
  for (size_t p = 0; p < parts; ++p) {
    int64_t to = 0, from = 0;
    for (size_t e = 0; e < local; ++e) {
      to += go[p * local + e];
      from += come[p * local + e];
      x.offsets[e + 1] += come[p * local + e];
    }
    x.sent.push_back(to * dim_);
    x.received.push_back(from * dim_);
  }
  std::partial_sum(x.offsets.begin(), x.offsets.end(), x.offsets.begin());
  if (parts == 1 || local == 1) return x;
  // Rows arrive by part, then by expert.
  std::vector<int32_t> arrange(static_cast<size_t>(x.offsets.back())), restore(arrange.size());
  std::vector<int64_t> next(x.offsets.begin(), x.offsets.end() - 1);
  size_t at = 0;
  for (size_t p = 0; p < parts; ++p)
    for (size_t e = 0; e < local; ++e)
      for (int32_t i = 0; i < come[p * local + e]; ++i, ++at) {
        const int64_t place = next[e]++;
        arrange[static_cast<size_t>(place)] = static_cast<int32_t>(at);
        restore[at] = static_cast<int32_t>(place);
      }
  x.arrange = make(counts, {x.offsets.back()}, DType::i32);
  x.restore = make(counts, {x.offsets.back()}, DType::i32);
  ops::copy_from_host(s, x.arrange, arrange.data(), x.arrange.nbytes());
  ops::copy_from_host(s, x.restore, restore.data(), x.restore.nbytes());
  return x;
}

Tensor MoeMlp::to_experts(const Tensor& rows, const Exchange& e) {
  if (parallel_.parts == 1) return rows;
  Stream& s = rows.device().compute();
  const Tensor arrived = make(rows, {e.offsets.back(), dim_}, rows.dtype());
  parallel_.comm->all_to_all_v(s, arrived.unowned_view(), e.received, rows.unowned_view(), e.sent);
  return permuted(s, arrived, e.arrange);
}

Tensor MoeMlp::from_experts(const Tensor& rows, const Exchange& e) {
  if (parallel_.parts == 1) return rows;
  Stream& s = rows.device().compute();
  const int64_t elements = std::reduce(e.sent.begin(), e.sent.end());
  const Tensor back = make(rows, {elements / dim_, dim_}, rows.dtype());
  parallel_.comm->all_to_all_v(s, back.unowned_view(), e.sent, permuted(s, rows, e.restore).unowned_view(),
                               e.received);
  return back;
}

Tensor MoeMlp::forward(const Tensor& x) {
  Stream& s = x.device().compute();
  const int64_t rows = x.size(0), k = shape_.top_k, n = rows * k;
  Saved v;
  v.x = x;
  v.logits = make(x, {rows, shape_.experts}, DType::f32);
  ops::gemm(s, v.logits, x, false, router_.data(), true);
  v.indices = make(x, {rows, k}, DType::i32);
  v.gates = make(x, {rows, k}, DType::f32);
  ops::route_top_k(s, v.indices, v.gates, v.logits);
  v.order = make(x, {n}, DType::i32);
  v.position = make(x, {n}, DType::i32);
  v.counts = make(x, {shape_.experts}, DType::i32);
  ops::sort_by_expert(s, v.order, v.position, v.counts, v.indices);
  const Tensor copies = make(x, {n, dim_}, x.dtype());
  ops::expand_rows(s, copies, x, v.order, {});
  v.exchange = plan(v.counts);
  if (training() && counts_everywhere())
    parallel_.all->all_reduce(s, v.counts.unowned_view());  // the plan is made
  experts_.set_offsets(v.exchange.offsets);
  v.outputs = from_experts(experts_(to_experts(copies, v.exchange)), v.exchange);
  Tensor y = make(x, x.shape(), x.dtype());
  ops::combine_rows(s, y, v.outputs, v.position, v.gates);
  if (training()) saved_.push_back(std::move(v));
  return y;
}

Tensor MoeMlp::backward(const Tensor& dy) {
  Stream& s = dy.device().compute();
  const Saved v = std::move(saved_.back());
  saved_.pop_back();
  const Tensor dgates = make(dy, v.gates.shape(), DType::f32);
  ops::combine_gates_backward(s, dgates, dy, v.outputs, v.position);
  const Tensor douts = make(dy, v.outputs.shape(), dy.dtype());
  ops::expand_rows(s, douts, dy, v.order, v.gates);
  const Tensor dcopies = from_experts(experts_.run_backward(to_experts(douts, v.exchange)), v.exchange);
  const Tensor dx = make(dy, dy.shape(), dy.dtype());
  ops::combine_rows(s, dx, dcopies, v.position, {});

  const Tensor dlogits = make(dy, v.logits.shape(), dy.dtype());
  const int64_t ranks = counts_everywhere() ? parallel_.all->size() : 1;
  const auto choices = static_cast<float>(std::max<int64_t>(1, ranks * v.indices.numel()));
  const float balance = shape_.balance * loss_scale_ * static_cast<float>(shape_.experts) / choices;
  ops::route_top_k_backward(s, dlogits, dgates, v.logits, v.indices,
                            shape_.balance == 0 ? Tensor() : v.counts, balance);
  const auto [drouter, beta] = router_.grad_for_overwrite();
  ops::gemm(s, drouter, dlogits, true, v.x, false, 1, beta);
  ops::gemm(s, dx, dlogits, false, router_.data(), false, 1, 1);
  return dx;
}

}  // namespace train_gpt
