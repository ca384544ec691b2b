// Attention sinks: a learned logit of each head in the denominator of its softmax. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Attention with one more key per head, of score sinks[h] and value 0. It updates the results of
/// attention_forward(): with l = lse, lse = ln(e^l + e^sink) and out *= e^(l - lse). Given these out and lse,
/// attention_backward() computes the gradients of q, k and v as they are with the sink. Backward: dsinks[h]
/// += -sum over rows of e^(sink - lse) * dot(dout, out), in f64, in one fixed order. (Xiao et al., Efficient
/// Streaming Language Models with Attention Sinks, 2023, arXiv 2309.17453, as gpt-oss learns them.) out, dout
/// [batch * seq, heads * head_dim], lse f32 [batch, heads, seq], sinks and dsinks f32 [heads].
struct SinksArgs {
  int64_t batch = 0, seq = 0, heads = 0, head_dim = 0;
  Ref out{}, dout{};  // dout: backward
  float* lse = nullptr;
  const float* sinks = nullptr;
  float* dsinks = nullptr;  // backward

  /// Index into lse of row t of head h, and into out of its first element.
  int64_t sum(int64_t b, int64_t h, int64_t t) const { return (b * heads + h) * seq + t; }
  int64_t row(int64_t b, int64_t h, int64_t t) const { return ((b * seq + t) * heads + h) * head_dim; }
};

inline Work work_of(const Device&, const SinksArgs& a) {
  return {.bytes = bytes_of({a.out, a.dout}, a.batch * a.seq * a.heads * a.head_dim)};
}

struct SinksKernels {
  static constexpr const char* kName = "sinks";
  static const SinksKernels* reference();
  static const SinksKernels* cpu();
  static const SinksKernels* cuda();

  void (*sinks_forward)(ExecutionContext&, const SinksArgs&);
  void (*sinks_backward)(ExecutionContext&, const SinksArgs&);
};

namespace ops {

/// out and lse are changed in place. batch, seq and heads follow from lse.
void sinks_forward(Stream& s, const Tensor& out, const Tensor& lse, const Tensor& sinks);
/// dsinks adds; out and lse are what forward made of them.
void sinks_backward(Stream& s, const Tensor& dsinks, const Tensor& dout, const Tensor& out, const Tensor& lse,
                    const Tensor& sinks);

}  // namespace ops
}  // namespace sherd
