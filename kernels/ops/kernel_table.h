// The kernels behind the door: one function pointer per operation, on raw memory, run inside a stream.
//
// ops.h checks shapes and queues; a table only computes. Every table implements every entry. `T` below is the
// activation dtype (f32 or bf16); arithmetic inside a kernel is always fp32 or better, and gradients of
// weights are always f32 and accumulated (`+=`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/ops/orthogonalize.h>
#include <sherd/kernels/ops/segments.h>
#include <sherd/kernels/device/stream.h>

namespace sherd {

/// Untyped pointer with its dtype.
struct Ref {
  void* data = nullptr;
  DType dtype = DType::f32;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// C[m,n] = alpha * op(A) op(B) + beta * C, row-major with leading dimensions.
/// A and B have one dtype (f32 or bf16); C is f32 or that dtype; the sum over k is fp32.
/// beta = 0 never reads C. m, n or k may be 0.
/// Epilogue, only with alpha = 1 and beta = 0, C of A's dtype and ldc = n: bias [n] of that dtype is added to
/// every row, and with `gelu` C = gelu(product + bias) while pre [m, n] of that dtype receives product + bias.
/// Each of bias and pre may be null; pre may not be C. Or, with neither bias nor gelu: C = residual + product, or,
/// with `gelu_backward`, C = product * gelu'(pre), where pre is read; residual and pre have C's dtype and shape, rows
/// of n elements, and are not C. On the CPU the bits are those of gemm, add_bias, gelu_forward, add and
/// gelu_backward one after another; elsewhere they agree to the roundings between those.
struct GemmArgs {
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  Ref a{}, b{}, c{};
  int64_t lda = 0, ldb = 0, ldc = 0;
  Ref bias{}, pre{};
  bool gelu = false;
  Ref residual{};
  bool gelu_backward = false;
};

/// y = x * rstd * w per row, rstd = 1/sqrt(mean(x^2) + eps); rstd is f32 [rows].
struct RmsNormArgs {
  int64_t rows = 0, cols = 0;
  float eps = 0;
  Ref x{}, w{}, y{};
  float* rstd = nullptr;
  Ref dy{}, dx{};       // backward
  float* dw = nullptr;  // backward, += over rows in increasing order
};

/// Causal self-attention over packed rows: qkv is [batch*seq, 3*heads*head_dim] with q, k, v side by side
/// (head h at columns h*head_dim of each third); out is [batch*seq, heads*head_dim]; softmax scale is
/// 1/sqrt(head_dim). lse f32 [batch, heads, seq] is the log-sum-exp of each score row, kept for backward.
struct AttentionArgs {
  int64_t batch = 0, seq = 0, heads = 0, head_dim = 0;
  Ref qkv{}, out{};
  float* lse = nullptr;
  Ref dout{}, dqkv{};  // backward; dqkv is overwritten
};

/// out[i] = table[token[i]] + positions[i mod seq]; positions may be null. Backward adds, in increasing i.
struct EmbeddingArgs {
  int64_t count = 0, seq = 0, width = 0, vocab = 0;
  const int32_t* tokens = nullptr;
  Ref table{}, positions{}, out{};
  Ref dout{};
  float* dtable = nullptr;
  float* dpositions = nullptr;
};

/// losses[i] = logsumexp(logits[i]) - logits[i][target[i]] (nats).
/// Backward: dlogits[i] = (softmax(logits[i]) - onehot(target[i])) * scale; dlogits may be logits.
/// Both at once give the same bits and read the logits once.
struct CrossEntropyArgs {
  int64_t rows = 0, vocab = 0;
  Ref logits{}, dlogits{};
  const int32_t* targets = nullptr;
  float* losses = nullptr;
  float scale = 1;
};

/// Cross-entropy over a vocabulary whose columns lie on several ranks: these are columns [begin, begin +
/// cols) of it. Three steps, with what each reads and writes:
///   partial: stats[i] = {max, sum of exp(logits[i] - max), logit of target[i] or 0 when it is not here};
///   combine: stats of all parts, [parts, rows, 3], in the order of the parts: lse[i], losses[i] (nats);
///   backward: dlogits[i] = (exp(logits[i] - lse[i]) - onehot(target[i])) * scale; dlogits may be logits.
/// A part without columns has max -inf and sum 0.
struct VocabParallelArgs {
  int64_t rows = 0, cols = 0, begin = 0, parts = 0;
  Ref logits{}, dlogits{};
  const int32_t* targets = nullptr;
  float* stats = nullptr;
  float* lse = nullptr;
  float* losses = nullptr;
  float scale = 1;
};

/// `skip` below: a number in device memory, the same on every rank, or null. Other than 0, the pass leaves
/// everything as it was: the step's gradients are not finite somewhere.

/// What of AdamW depends on the number of updates so far: step_size = lr/bias1, root = sqrt(bias2), with
/// bias_i = 1 - beta_i^step in double, rounded to f32.
struct AdamWBias {
  float step_size = 0, root = 1;
};

/// beta^step is multiplied together by repeated squaring, from the lowest bit of `step` on, so that every
/// device has the same bits.
AdamWBias adamw_bias(double lr, double beta1, double beta2, int64_t step);

/// For each of `count` counters: ++steps, and its bias as adamw_bias() says.
struct AdamWCountArgs {
  int64_t count = 0;
  float* steps = nullptr;  // whole numbers; they stay at 2^24, where a bias correction is long 1
  AdamWBias* biases = nullptr;
  double lr = 0, beta1 = 0, beta2 = 0;
  const int64_t* skip = nullptr;
};

/// Decoupled AdamW (Loshchilov & Hutter 2019) with PyTorch's order of operations, per element:
///   w *= 1 - lr*weight_decay; m += (1-beta1)*(g-m); v = beta2*v + (1-beta2)*g*g;
///   w -= step_size * m / (sqrt(v)/root + eps).
/// copy_dtype (f32, bf16 or f16) is that of the segments' copies. Without `biases` (device memory) `bias`
/// holds for all.
struct AdamWArgs {
  std::vector<AdamWSegment> segments;
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0;
  DType copy_dtype = DType::f32;
  const AdamWBias* biases = nullptr;
  AdamWBias bias{};
  const int64_t* skip = nullptr;
};

/// For every element of every segment, in single f32 operations in this order:
///   g' = l2 == 0 ? g : g + l2 * w;  buffer += (1-mu) * (g' - buffer);
///   packed = nesterov ? g' + mu * (buffer - g') : buffer  (torch.optim.Muon).
/// Where g' is not finite the buffer stays and NaN is packed. packed: f32, bf16 or f16. With `skip` the
/// buffer stays everywhere; what is packed is the same. The result for an element must not depend on where it
/// lies in its segment.
struct MuonMomentumArgs {
  std::vector<MomentumSegment> segments;
  Ref packed{};
  float mu = 0;
  bool nesterov = true;
  float l2 = 0;
  const int64_t* skip = nullptr;
};

/// w = decay * w + alpha * packed, in f32 operations, for every element of every segment.
struct MuonUpdateArgs {
  std::vector<UpdateSegment> segments;
  Ref packed{};
  const int64_t* skip = nullptr;
};

/// to[segment.to + i] = from[segment.from + i]; f32, bf16 or f16, rounded once.
struct CopySegmentsArgs {
  std::vector<CopySegment> segments;
  Ref to{}, from{};
};

/// Each of `batch` row-major [rows, cols] f32 matrices by itself; status i32 [batch]. out does not alias in.
/// Norms are taken in double; see OrthogonalizeOptions for the iteration. `svd` drops the directions whose
/// singular value is below max(rows, cols) * 2^-23 * the largest.
struct OrthogonalizeArgs {
  int64_t batch = 1, rows = 0, cols = 0;
  const float* in = nullptr;
  float* out = nullptr;
  int32_t* status = nullptr;
  OrthogonalizeOptions options;
};

/// gram [batch, n, n] = x^T x (contract_rows, n = cols) or x x^T (n = rows); exactly symmetric.
struct GramProductArgs {
  int64_t batch = 1, rows = 0, cols = 0;
  bool contract_rows = false;
  const float* x = nullptr;
  float* gram = nullptr;
};

/// q [batch, n, n] = the product of steps [first, last) as a polynomial in gram. With first == 0, gram is
/// scaled by 1/(sqrt(trace) + eps)^2, q by 1/(sqrt(trace) + eps), and status is written; elsewhere status is
/// not touched. options.restarts do not matter here.
struct GramIterateArgs {
  int64_t batch = 1, n = 0;
  float* q = nullptr;
  float* gram = nullptr;
  int32_t* status = nullptr;
  int first = 0, last = 0;
  OrthogonalizeOptions options;
};

/// out [batch, rows, cols] = x q (contract_rows) or q x. A q of zeros gives zeros, whatever x holds.
struct GramApplyArgs {
  int64_t batch = 1, rows = 0, cols = 0;
  bool contract_rows = false;
  const float* x = nullptr;
  const float* q = nullptr;
  float* out = nullptr;
};

/// Chooses k experts (1 or 2) for every row by its logits [rows, experts]: the largest, ties and NaN to the
/// lower index. indices [rows, k], best first. gates [rows, k]: for k = 1 the softmax probability of the
/// chosen one, for k = 2 the two probabilities divided by their sum. Backward: dlogits = the gradient through
/// the gates, plus that of balance * sum over rows and experts of counts[e] * softmax(logits)[e] when counts
/// is not null (counts are constants). logits and dlogits may differ in dtype; gates and dgates are f32 (f64
/// in the reference's own tests).
struct RouteArgs {
  int64_t rows = 0, experts = 0, k = 0;
  Ref logits{}, gates{};
  int32_t* indices = nullptr;
  Ref dgates{}, dlogits{};
  const int32_t* counts = nullptr;
  float balance = 0;
};

/// The stable order of `count` places by their expert: order[j] is the place that comes j-th, position its
/// inverse, counts[e] the number of places of expert e.
struct ExpertSortArgs {
  int64_t count = 0, experts = 0;
  const int32_t* indices = nullptr;
  int32_t* order = nullptr;
  int32_t* position = nullptr;
  int32_t* counts = nullptr;
};

/// Rows of tokens [rows, cols] beside their copies [rows * slots, cols] in another order: copy j belongs to
/// place order[j] = row * slots + slot, and position is the inverse of order. gates [rows, slots] may be null
/// (all ones).
///   expand:  copies[j] = gates[order[j]] * tokens[order[j] / slots]
///   combine: tokens[r] = sum over slots, in their order, of gates[r, s] * copies[position[r, s]]
///   gates_backward: dgates[r, s] = dot(tokens[r], copies[position[r, s]]), with the gradient of tokens.
struct ExpertRowsArgs {
  int64_t rows = 0, slots = 1, cols = 0;
  Ref tokens{}, copies{};
  const int32_t* order = nullptr;
  const int32_t* position = nullptr;
  Ref gates{}, dgates{};
};

enum class ReduceOp { sum, max, min };

/// dst[i] = reduction over s of sources[s][begin + i], for i in [0, count), in the pairwise tree of
/// Communicator with sources in rank order. bf16 and f16 are reduced in fp32 and rounded once, the others in
/// their own type; integers wrap. max and min give NaN when any source has one. dst may be exactly sources[s]
/// + begin of any s; otherwise it must not overlap what is read. At least one source; any dtype but u8.
struct ReduceArgs {
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  void* dst = nullptr;
  std::vector<const void*> sources;
  int64_t begin = 0, count = 0;
};

/// `blocks` runs of `run` bytes; run i starts at dst + i * dst_stride and src + i * src_stride (bytes).
struct StridedCopyArgs {
  char* dst = nullptr;
  const char* src = nullptr;
  int64_t dst_stride = 0, src_stride = 0, blocks = 0, run = 0;
};

/// With norm = ExactSum::norm of the word-wise sum of the accumulators, which total (may be pinned host
/// memory) receives: skip[0] (may be null) = 1 when norm is not finite in f32 or the sum's kElsewhere is not
/// 0, else 0; factor[0] = max_norm > 0 and not skip ? min(1, max_norm / (norm + 1e-6)) : 1.
struct ClipFactorArgs {
  std::vector<const int64_t*> accumulators;
  double max_norm = 0;
  float* factor = nullptr;
  int64_t* total = nullptr;
  int64_t* skip = nullptr;
};

struct KernelTable {
  const char* name;
  void (*fill)(ExecutionContext&, Ref dst, int64_t count, double value);
  /// Between any two of host and device memory.
  void (*copy)(ExecutionContext&, void* dst, const void* src, int64_t bytes);
  void (*strided_copy)(ExecutionContext&, const StridedCopyArgs&);
  void (*reduce)(ExecutionContext&, const ReduceArgs&);
  /// Finds an index outside [0, bound). On the CPU it throws InvalidArgument; `op` and `what` are static
  /// strings for the message. A device that runs beside the host fails the stream at a later call instead,
  /// and kernels that use the indices leave foreign memory alone meanwhile.
  void (*check_indices)(ExecutionContext&, const char* op, const char* what, const int32_t* indices,
                        int64_t count, int64_t bound);
  /// Any pair of f32, bf16, f16, f64.
  void (*cast)(ExecutionContext&, Ref dst, Ref src, int64_t count);
  /// x *= factor (f32, bf16).
  void (*scale)(ExecutionContext&, Ref x, int64_t count, float factor);
  /// x *= factor[0] for every segment; a factor of exactly 1 leaves them untouched.
  void (*scale_by)(ExecutionContext&, const std::vector<ScaleSegment>&, const float* factor);
  /// dst += alpha * src; dst f32, src f32 or bf16.
  void (*scaled_add)(ExecutionContext&, float* dst, float alpha, Ref src, int64_t count);
  /// dst = decay * dst + alpha * src, all f32.
  void (*scale_and_add)(ExecutionContext&, float* dst, float decay, float alpha, const float* src,
                        int64_t count);
  /// out = a + b, one dtype (f32 or bf16); out may alias either.
  void (*add)(ExecutionContext&, Ref out, Ref a, Ref b, int64_t count);
  void (*gemm)(ExecutionContext&, const GemmArgs&);
  void (*rms_norm_forward)(ExecutionContext&, const RmsNormArgs&);
  void (*rms_norm_backward)(ExecutionContext&, const RmsNormArgs&);
  void (*attention_forward)(ExecutionContext&, const AttentionArgs&);
  void (*attention_backward)(ExecutionContext&, const AttentionArgs&);
  /// 0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3)))
  void (*gelu_forward)(ExecutionContext&, Ref y, Ref x, int64_t count);
  /// dx = dy * gelu'(x); dx may alias dy.
  void (*gelu_backward)(ExecutionContext&, Ref dx, Ref dy, Ref x, int64_t count);
  void (*embedding_forward)(ExecutionContext&, const EmbeddingArgs&);
  void (*embedding_backward)(ExecutionContext&, const EmbeddingArgs&);
  void (*cross_entropy_forward)(ExecutionContext&, const CrossEntropyArgs&);
  void (*cross_entropy_backward)(ExecutionContext&, const CrossEntropyArgs&);
  void (*cross_entropy_forward_backward)(ExecutionContext&, const CrossEntropyArgs&);
  void (*route_top_k)(ExecutionContext&, const RouteArgs&);
  void (*route_top_k_backward)(ExecutionContext&, const RouteArgs&);
  void (*sort_by_expert)(ExecutionContext&, const ExpertSortArgs&);
  void (*expand_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_gates_backward)(ExecutionContext&, const ExpertRowsArgs&);
  /// y[r][c] += bias[c], one dtype.
  void (*add_bias)(ExecutionContext&, Ref y, Ref bias, int64_t rows, int64_t cols);
  /// dbias[c] += sum over rows of dy[r][c], in increasing order.
  void (*bias_backward)(ExecutionContext&, float* dbias, Ref dy, int64_t rows, int64_t cols);
  void (*vocab_parallel_partial)(ExecutionContext&, const VocabParallelArgs&);
  void (*vocab_parallel_combine)(ExecutionContext&, const VocabParallelArgs&);
  void (*vocab_parallel_backward)(ExecutionContext&, const VocabParallelArgs&);
  void (*adamw_count)(ExecutionContext&, const AdamWCountArgs&);
  void (*adamw)(ExecutionContext&, const AdamWArgs&);
  void (*muon_momentum)(ExecutionContext&, const MuonMomentumArgs&);
  void (*muon_update)(ExecutionContext&, const MuonUpdateArgs&);
  void (*copy_segments)(ExecutionContext&, const CopySegmentsArgs&);
  void (*orthogonalize)(ExecutionContext&, const OrthogonalizeArgs&);
  void (*gram_product)(ExecutionContext&, const GramProductArgs&);
  void (*gram_iterate)(ExecutionContext&, const GramIterateArgs&);
  void (*gram_apply)(ExecutionContext&, const GramApplyArgs&);
  /// Adds the exact sum of x[i]^2, the number of zeros and of non-finite elements; see exact_sum.h. The sums
  /// are normalised afterwards.
  void (*accumulate_squares)(ExecutionContext&, const std::vector<SquaresSegment>&);
  /// dst[i] += src[i], wrapping.
  void (*add_words)(ExecutionContext&, int64_t* dst, const int64_t* src, int64_t count);
  void (*clip_factor)(ExecutionContext&, const ClipFactorArgs&);
  /// out[0] += sum of x in an order that depends on count alone (CPU: increasing), in double.
  void (*accumulate_sum)(ExecutionContext&, double* out, const float* x, int64_t count);
  /// Element i of the range is element begin + i of an infinite N(mean, stddev) sequence named by `key`.
  void (*random_normal)(ExecutionContext&, float* dst, int64_t begin, int64_t count, uint64_t key, float mean,
                        float stddev);
};

/// What check_indices says: "<op>: <what> 70 at position 3 lies outside [0, 64)", with advice for tokens.
std::string bad_index(const char* op, const char* what, int32_t index, int64_t position, int64_t bound);

/// Slow and obvious; the oracle of every test.
const KernelTable& reference_kernels();
/// Vectorised, threaded (OpenMP, ctx.threads), GEMM by oneDNN, singular values by LAPACK. Entries that need
/// no speed are the reference's.
const KernelTable& cpu_kernels();
/// On the GPU (kernels/cuda). @throws NotCompiled without CUDA.
const KernelTable& cuda_kernels();

}  // namespace sherd
