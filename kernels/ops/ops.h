// The one door to computation: checks shapes and dtypes, then queues the kernel on a stream.
//
// Every function returns at once. Tensors named as outputs are overwritten unless the comment says "adds".
// The caller keeps the memory alive until the stream has run the work (see Device for the reuse rule).
// @throws ShapeMismatch / InvalidArgument at the call when arguments do not fit; kernels themselves do not
// fail. Formulas and accumulation rules are those of the argument structs in kernel_table.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <sherd/kernels/ops/orthogonalize.h>
#include <sherd/kernels/ops/segments.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd::ops {

void fill(Stream& s, const Tensor& dst, double value);
/// Same dtype and element count. Counted in Device::copied_bytes().
void copy(Stream& s, const Tensor& dst, const Tensor& src);
/// Copies host memory into dst; the bytes are taken before the call returns.
void copy_from_host(Stream& s, const Tensor& dst, const void* src, int64_t bytes);
/// Waits for the stream, then copies into host memory.
void copy_to_host(Stream& s, void* dst, const Tensor& src);
/// copy_to_host into a vector of floats; src is f32, bf16 or f16.
std::vector<float> to_floats(Stream& s, const Tensor& src);

/// Element count equal, any pair of float dtypes.
void cast(Stream& s, const Tensor& dst, const Tensor& src);
void scale(Stream& s, const Tensor& x, float factor);
/// x *= factor[0] for all segments in one pass; factor f32 [1] read on the stream; a factor of exactly 1
/// leaves them untouched. Segments as below.
void scale_by(Stream& s, std::span<const ScaleSegment> segments, const Tensor& factor);
void scale_by(Stream& s, const Tensor& x, const Tensor& factor);  // f32
/// dst += alpha * src.
void scaled_add(Stream& s, const Tensor& dst, float alpha, const Tensor& src);
/// dst = decay * dst + alpha * src (f32).
void scale_and_add(Stream& s, const Tensor& dst, float decay, float alpha, const Tensor& src);
void add(Stream& s, const Tensor& out, const Tensor& a, const Tensor& b);

/// C = alpha * op(A) op(B) + beta * C for 2-D tensors.
void gemm(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
          float alpha = 1, float beta = 0);
/// C = op(A) op(B) + bias; all of one dtype, bias [n].
void gemm_bias(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
               const Tensor& bias);
/// pre = op(A) op(B) + bias, C = gelu(pre): what gemm, add_bias and gelu_forward would do, in one kernel where
/// the device has one. All of one dtype; bias [n] may be undefined (none); pre, of C's shape, may be undefined
/// when no backward follows. C and pre do not overlap.
void gemm_gelu(Stream& s, const Tensor& c, const Tensor& pre, const Tensor& a, bool trans_a, const Tensor& b,
               bool trans_b, const Tensor& bias = {});

/// C = residual + op(A) op(B): what gemm and add would do, in one kernel where the device has one, which then
/// rounds once and not twice. All of one dtype; residual has C's shape and does not overlap C.
void gemm_add(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
              const Tensor& residual);
/// C = op(A) op(B) * gelu'(pre): what gemm and gelu_backward would do, likewise. pre has C's shape and does not
/// overlap C.
void gemm_gelu_backward(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b,
                        bool trans_b, const Tensor& pre);

/// x, y [rows, cols]; w [cols]; rstd f32 [rows].
void rms_norm_forward(Stream& s, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      float eps);
/// dw (f32 [cols]) adds.
void rms_norm_backward(Stream& s, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                       const Tensor& w, const Tensor& rstd);

/// qkv [batch*seq, 3*heads*head_dim], out [batch*seq, heads*head_dim], lse f32 [batch, heads, seq].
void attention_forward(Stream& s, const Tensor& out, const Tensor& lse, const Tensor& qkv, int64_t batch,
                       int64_t heads);
void attention_backward(Stream& s, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, int64_t batch, int64_t heads);

void gelu_forward(Stream& s, const Tensor& y, const Tensor& x);
void gelu_backward(Stream& s, const Tensor& dx, const Tensor& dy, const Tensor& x);

/// tokens i32 [batch, seq]; table [vocab, width]; positions [>= seq, width] or undefined; out [batch*seq,
/// width]. A token outside [0, vocab) fails the stream with InvalidArgument.
void embedding_forward(Stream& s, const Tensor& out, const Tensor& tokens, const Tensor& table,
                       const Tensor& positions);
/// dtable and dpositions (f32; dpositions may be undefined) add.
void embedding_backward(Stream& s, const Tensor& dtable, const Tensor& dpositions, const Tensor& dout,
                        const Tensor& tokens);

/// logits [rows, vocab], targets i32 (rows elements), losses f32 [rows].
void cross_entropy_forward(Stream& s, const Tensor& losses, const Tensor& logits, const Tensor& targets);
/// dlogits may be logits itself.
void cross_entropy_backward(Stream& s, const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                            float scale);
/// Both, to the same bits, in one reading of the logits.
void cross_entropy_forward_backward(Stream& s, const Tensor& losses, const Tensor& dlogits,
                                    const Tensor& logits, const Tensor& targets, float scale);

/// Mixture of experts. logits [rows, experts]; indices i32 [rows, k], gates f32 [rows, k]; k is 1 or 2.
/// @throws InvalidArgument for another k, or k > experts.
void route_top_k(Stream& s, const Tensor& indices, const Tensor& gates, const Tensor& logits);
/// dgates f32 [rows, k]; counts i32 [experts] or undefined (no balancing term).
void route_top_k_backward(Stream& s, const Tensor& dlogits, const Tensor& dgates, const Tensor& logits,
                          const Tensor& indices, const Tensor& counts, float balance);
/// All i32; counts [experts], the others of one element count. An index outside [0, experts) fails the stream
/// with InvalidArgument.
void sort_by_expert(Stream& s, const Tensor& order, const Tensor& position, const Tensor& counts,
                    const Tensor& indices);
/// tokens [rows, cols], copies [rows * slots, cols], order and position i32 [rows * slots], gates f32 of as
/// many elements or undefined (all ones). An index outside the tensor fails the stream with InvalidArgument.
void expand_rows(Stream& s, const Tensor& copies, const Tensor& tokens, const Tensor& order,
                 const Tensor& gates);
void combine_rows(Stream& s, const Tensor& tokens, const Tensor& copies, const Tensor& position,
                  const Tensor& gates);
void combine_gates_backward(Stream& s, const Tensor& dgates, const Tensor& dtokens, const Tensor& copies,
                            const Tensor& position);
/// y [rows, cols], bias [cols], in place.
void add_bias(Stream& s, const Tensor& y, const Tensor& bias);
/// dbias (f32 [cols]) adds.
void bias_backward(Stream& s, const Tensor& dbias, const Tensor& dy);

/// Which columns of the vocabulary a rank's logits are: `begin` and the next cols - 1 of `vocab`.
struct VocabPart {
  int64_t begin = 0, vocab = 0;
};
/// Cross-entropy of logits [rows, cols] that lie column-wise on several ranks, in three steps: each rank's
/// stats, f32 [rows, 3]; all ranks' stats, f32 [parts, rows, 3], give losses and log-sum-exp, f32 [rows], in
/// the same bits on every rank; each rank's part of the gradient. One part is cross_entropy to rounding.
/// A target outside [0, vocab) fails the stream with InvalidArgument.
void vocab_parallel_partial(Stream& s, const Tensor& stats, const Tensor& logits, const Tensor& targets,
                            VocabPart part);
void vocab_parallel_combine(Stream& s, const Tensor& losses, const Tensor& lse, const Tensor& stats);
/// dlogits may be logits itself.
void vocab_parallel_backward(Stream& s, const Tensor& dlogits, const Tensor& logits, const Tensor& lse,
                             const Tensor& targets, VocabPart part, float scale);

struct AdamWStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  /// Counted from 1.
  int64_t step = 1;
};
/// All f32 of one element count; copy (f32, bf16 or f16; may be undefined) receives the new w in the same
/// pass.
void adamw(Stream& s, const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& g,
           const AdamWStep& step, const Tensor& copy = {});

/// AdamW over many parameters, where the device alone knows whether a step is taken. skip (i64 [1], may be
/// undefined) is read on the stream: other than 0, all of these leave everything as it was.
struct AdamWRates {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};
/// Counts a step of each parameter (steps f32 [n], whole numbers) and works out its bias corrections for
/// adamw(): biases f32 [n, 2].
void adamw_count(Stream& s, const Tensor& steps, const Tensor& biases, const AdamWRates& rates,
                 const Tensor& skip = {});
/// One pass over all segments, AdamWSegment::bias being a row of biases; copies are of `copy_dtype`.
/// @throws ShapeMismatch naming every segment that lacks a pointer or names a row that is not there.
void adamw(Stream& s, std::span<const AdamWSegment> segments, const AdamWRates& rates, const Tensor& biases,
           DType copy_dtype = DType::f32, const Tensor& skip = {});

/// Segments hold plain pointers; as with tensors, the caller keeps what they point to until the stream has
/// run the work. @throws ShapeMismatch naming every segment that leaves its buffer or lacks a pointer.
///
/// Momentum, Nesterov, cast and pack in one pass (EMA form, as torch.optim.Muon), for every segment:
///   g' = g + l2 * w;  buffer += (1-mu)*(g' - buffer);  packed = nesterov ? g' + mu*(buffer - g') : buffer.
/// packed is f32, bf16 or f16. Where g' is not finite, the buffer keeps its value and NaN is packed. The
/// result for an element depends on that element alone. With skip (i64 [1], may be undefined, read on the
/// stream) other than 0 no buffer moves; what is packed is the same.
void muon_momentum(Stream& s, const Tensor& packed, std::span<const MomentumSegment> segments, float mu,
                   bool nesterov, float l2 = 0, const Tensor& skip = {});
/// Unpack, scale, decay and update in one pass: w = decay * w + alpha * packed for every segment; with skip
/// as above, nothing.
void muon_update(Stream& s, std::span<const UpdateSegment> segments, const Tensor& packed,
                 const Tensor& skip = {});
/// to[segment] = from[segment], casting between f32, bf16 and f16. Segments of `to` do not overlap each
/// other, nor do the tensors. Counted in Device::copied_bytes().
void copy_segments(Stream& s, const Tensor& to, const Tensor& from, std::span<const CopySegment> segments);

/// in, out f32 [rows, cols] or [batch, rows, cols], distinct; status i32 [batch] (MatrixStatus). The result
/// for a matrix depends, in bits, on neither the batch it comes in nor the number of threads.
/// @throws InvalidArgument naming all of: no steps, restarts outside 1..steps-1 or not increasing, the gram
/// form in bf16, values that are not finite.
void orthogonalize(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status,
                   const OrthogonalizeOptions& options);

/// The parts of the gram form, for matrices whose contracted dimension is spread over ranks; like
/// orthogonalize they take one matrix or a batch. x f32 [batch, rows, cols]; gram f32 [batch, n, n] = x^T x
/// (contract_rows, n = cols) or x x^T (n = rows), whole and symmetric, half the work. Summed over the ranks'
/// pieces it is the Gram matrix of the whole. Squares of elements beyond 1e19 or below 1e-19 leave f32's
/// range: such a matrix ends as not finite or zero.
void gram_product(Stream& s, const Tensor& gram, const Tensor& x, bool contract_rows);
/// Steps [first, last) of the iteration on R = gram: q f32 [batch, n, n] such that X <- Xq (contract_rows) or
/// qX. When first is 0, gram is that of the matrix before normalisation: its trace gives ||U||_F^2, q holds
/// the factor 1/(||U||_F + eps), and status (i32 [batch]) is written; q of a zero or not finite matrix is
/// zero. Otherwise status is not touched and may be undefined. gram may be overwritten.
/// @throws InvalidArgument when a restart lies inside (first, last): that needs the matrix; see gram_apply.
void gram_iterate(Stream& s, const Tensor& q, const Tensor& gram, const Tensor& status, int first, int last,
                  const OrthogonalizeOptions& options);
/// out [batch, rows, cols] = x q (contract_rows) or q x. A q of zeros gives zeros, whatever x holds.
void gram_apply(Stream& s, const Tensor& out, const Tensor& x, const Tensor& q, bool contract_rows);

/// All segments in one pass.
void accumulate_squares(Stream& s, std::span<const SquaresSegment> segments);
/// accumulator i64 [ExactSum::kWords] adds; x f32.
void accumulate_squares(Stream& s, const Tensor& accumulator, const Tensor& x);
/// dst += src, i64, wrapping.
void add_words(Stream& s, const Tensor& dst, const Tensor& src);
/// From the word-wise sum of the accumulators, left in total (i64 [ExactSum::kWords], may be a host tensor):
/// skip i64 [1] (may be undefined) = 1 when the norm is not finite or anything else was not
/// (ExactSum::kElsewhere), else 0; factor f32 [1] = min(1, max_norm / (norm + 1e-6)), or 1 when max_norm is 0
/// or skip is 1.
void clip_factor(Stream& s, const Tensor& factor, const Tensor& total, std::span<const Tensor> accumulators,
                 double max_norm, const Tensor& skip = {});
/// `blocks` runs of `run` elements; run i begins at element i * stride of each tensor. One dtype; runs of dst
/// do not overlap. Counted in Device::copied_bytes().
void strided_copy(Stream& s, const Tensor& dst, int64_t dst_stride, const Tensor& src, int64_t src_stride,
                  int64_t blocks, int64_t run);

/// out f64 [1] adds the sum of x (f32).
void accumulate_sum(Stream& s, const Tensor& out, const Tensor& x);

/// dst f32 receives elements [begin, begin + numel) of the normal sequence of (seed, name); Philox4x32-10.
void random_normal(Stream& s, const Tensor& dst, int64_t begin, uint64_t seed, std::string_view name,
                   float mean, float stddev);

}  // namespace sherd::ops
