#include "cuda_matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>

#include <sherd/kernels/device/cuda/queue.h>

// cuBLASLt thinks in columns: a row-major matrix is its transpose there. C^T = op(B)^T op(A)^T, so the
// operands change places and keep their transposition flags.

namespace sherd::cuda {
namespace {

constexpr const char* kName = "matmul (cuBLASLt)";

template <auto& Destroy>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Destroy(p);
  }
};
using Descriptor =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Deleter<cublasLtMatmulDescDestroy>>;
using Layout =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, Deleter<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                   Deleter<cublasLtMatmulPreferenceDestroy>>;

/// A matrix of a product in what its plan depends on.
struct Placed {
  int64_t ld = 0, stride = 0, alignment = 16;
  auto operator<=>(const Placed&) const = default;
};

/// All that a plan depends on.
struct Key {
  int64_t m = 0, n = 0, k = 0, batch = 1, nominal_batch = 1;
  bool trans_a = false, trans_b = false, tf32 = false;
  DType in = DType::f32, out = DType::f32;
  MatmulEpilogue epilogue = MatmulEpilogue::none;
  Placed a{}, b{}, c{}, addend{};
  auto operator<=>(const Key&) const = default;
};

std::string words(const Key& p) {
  return fmt::format(
      "[{}, {}] x [{}, {}] -> [{}, {}], batch {}, {} -> {}{}, leading dimensions {}, {}, {}, {}, alignments "
      "{}, {}, {}, {}, epilogue {}",
      p.m, p.k, p.k, p.n, p.m, p.n, p.batch, name_of(p.in), name_of(p.out), p.tf32 ? " (tf32)" : "", p.a.ld,
      p.b.ld, p.c.ld, p.addend.ld, p.a.alignment, p.b.alignment, p.c.alignment, p.addend.alignment,
      static_cast<int>(p.epilogue));
}

void check(cublasStatus_t status, const Key& key) {
  if (status != CUBLAS_STATUS_SUCCESS)
    cuda::check(status, fmt::format("{} of {}", kName, words(key)).c_str());
}

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::f64:
      return CUDA_R_64F;
    default:
      throw NotSupported(fmt::format("{}: no products of {}", kName, name_of(t)));
  }
}

cublasLtEpilogue_t epilogue_of(MatmulEpilogue e) {
  switch (e) {
    case MatmulEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case MatmulEpilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case MatmulEpilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case MatmulEpilogue::gelu_pre:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case MatmulEpilogue::gelu_pre_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case MatmulEpilogue::gelu_backward:
      return CUBLASLT_EPILOGUE_DGELU;
    case MatmulEpilogue::none:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class T>
void set(const Key& key, cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(d, attribute, &value, sizeof(value)), key);
}
template <class T>
void set(const Key& key, cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  check(cublasLtMatrixLayoutSetAttribute(l, attribute, &value, sizeof(value)), key);
}
template <class T>
void set(const Key& key, cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attribute,
         T value) {
  check(cublasLtMatmulPreferenceSetAttribute(p, attribute, &value, sizeof(value)), key);
}

Layout layout(const Key& key, DType type, int64_t rows, int64_t cols, const Placed& place) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(type), static_cast<uint64_t>(cols),
                                   static_cast<uint64_t>(rows), place.ld),
        key);
  Layout l(made);
  if (key.batch > 1) {
    set(key, made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(key.batch));
    set(key, made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, place.stride);
  }
  return l;
}

struct Plan {
  Descriptor descriptor;
  Layout a, b, c, addend;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // none: cuBLASLt has none for such a product
  bool one_by_one = false;                        // the algorithm takes no batch
};

Plan describe(const Key& key) {
  Plan plan;
  const bool f64 = key.in == DType::f64;
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made,
                                 f64        ? CUBLAS_COMPUTE_64F
                                 : key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F,
                                 f64 ? CUDA_R_64F : CUDA_R_32F),
        key);
  plan.descriptor.reset(made);
  auto operation = [](bool transposed) {
    return static_cast<int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  set(key, made, CUBLASLT_MATMUL_DESC_TRANSA, operation(key.trans_b));
  set(key, made, CUBLASLT_MATMUL_DESC_TRANSB, operation(key.trans_a));
  if (key.epilogue != MatmulEpilogue::none) {
    set(key, made, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue_of(key.epilogue)));
    if (key.epilogue == MatmulEpilogue::gelu_pre || key.epilogue == MatmulEpilogue::gelu_pre_bias ||
        key.epilogue == MatmulEpilogue::gelu_backward)
      set(key, made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  }
  plan.a = layout(key, key.in, key.trans_a ? key.k : key.m, key.trans_a ? key.m : key.k, key.a);
  plan.b = layout(key, key.in, key.trans_b ? key.n : key.k, key.trans_b ? key.k : key.n, key.b);
  plan.c = layout(key, key.out, key.m, key.n, key.c);
  plan.addend = layout(key, key.out, key.m, key.n, key.addend);
  return plan;
}

/// The pointers of the epilogue.
void point(const Key& key, const Plan& plan, void* bias, void* pre) {
  if (bias) set(key, plan.descriptor.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (pre) set(key, plan.descriptor.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pre);
}

/// The heuristic's first choice, if it has one.
std::optional<cublasLtMatmulAlgo_t> search(CudaQueue& queue, const Key& key, const Plan& plan) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), key);
  const Preference preference(made);
  set(key, made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(CudaQueue::kWorkspaceBytes));
  // In place, parts of a split sum meet in the order in which they finish.
  set(key, made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  auto alignment = [&](cublasLtMatmulPreferenceAttributes_t which, const Placed& place) {
    set(key, made, which, static_cast<uint32_t>(place.alignment));
  };
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b);
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a);
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.addend);
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(queue.blas(), plan.descriptor.get(), plan.b.get(), plan.a.get(),
                                     plan.addend.get(), plan.c.get(), made, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) return {};
  check(status, key);
  return found.algo;
}

/// Returns whether the algorithm supports the plan's batch.
bool works(CudaQueue& queue, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(queue.blas(), plan.descriptor.get(), plan.b.get(), plan.a.get(),
                                 plan.addend.get(), plan.c.get(), &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.state == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(CudaQueue::kWorkspaceBytes);
}

}  // namespace

/// Plans made so far; one queue's, used by its worker alone.
struct MatmulPlans {
  std::map<Key, Plan> plans;
};

namespace {

/// The search takes the alignment of an epilogue's pointers from their values: any later ones have at least
/// 16 bytes.
void point_somewhere(const Key& key, const Plan& plan, bool bias, bool pre) {
  void* const somewhere = reinterpret_cast<void*>(uintptr_t{16});
  point(key, plan, bias ? somewhere : nullptr, pre ? somewhere : nullptr);
}

/// Returns an algorithm for one matrix, with its `plan`: the nominal batch's if it exists and supports one
/// matrix. Nothing where cuBLASLt has none.
std::optional<cublasLtMatmulAlgo_t> algorithm_of(CudaQueue& queue, const Key& one, const Plan& plan,
                                                 bool bias, bool pre) {
  if (one.nominal_batch > 1) {
    Key many = one;
    many.batch = one.nominal_batch;
    const auto apart = [](Placed& p, int64_t rows) { p.stride = (rows * p.ld + 15) / 16 * 16; };
    apart(many.a, one.trans_a ? one.k : one.m);
    apart(many.b, one.trans_b ? one.n : one.k);
    apart(many.c, one.m);
    apart(many.addend, one.m);
    const Plan nominal = describe(many);
    point_somewhere(many, nominal, bias, pre);
    if (const auto found = search(queue, many, nominal); found && works(queue, plan, *found)) return found;
  }
  return search(queue, one, plan);
}

const Plan& plan_for(CudaQueue& queue, const Key& key, bool bias, bool pre) {
  std::shared_ptr<MatmulPlans>& all = queue.matmul_plans();
  if (!all) all = std::make_shared<MatmulPlans>();
  if (const auto found = all->plans.find(key); found != all->plans.end()) return found->second;
  Plan plan = describe(key);
  point_somewhere(key, plan, bias, pre);
  if (key.batch == 1) {
    plan.algorithm = algorithm_of(queue, key, plan, bias, pre);
  } else {
    Key one = key;
    one.batch = 1;
    for (Placed* p : {&one.a, &one.b, &one.c, &one.addend}) p->stride = 0;
    plan.algorithm = plan_for(queue, one, bias, pre).algorithm;
    plan.one_by_one = plan.algorithm && !works(queue, plan, *plan.algorithm);
  }
  return all->plans.emplace(key, std::move(plan)).first->second;
}

Placed placed(const Operand& o, DType type, int64_t batch) {
  Placed p{o.ld, batch > 1 ? o.stride : 0, 16};
  while (p.alignment > 1 && !(aligned(o.data, p.alignment) && p.stride * size_of(type) % p.alignment == 0))
    p.alignment /= 2;
  return p;
}

const Operand& addend_of(const Matmul& p) { return p.beta == 0 ? p.c : p.addend; }

Key key_of(const Matmul& p) {
  Key key{p.m, p.n, p.k, p.batch, p.nominal_batch, p.trans_a, p.trans_b, p.tf32, p.in, p.out, p.epilogue};
  key.a = placed(p.a, p.in, p.batch);
  key.b = placed(p.b, p.in, p.batch);
  key.c = placed(p.c, p.out, p.batch);
  key.addend = placed(addend_of(p), p.out, p.batch);
  return key;
}

}  // namespace

bool try_matmul(CudaQueue& queue, const Matmul& p) {
  const Operand& addend = addend_of(p);
  const Key key = key_of(p);
  const Plan& plan = plan_for(queue, key, p.bias, p.pre);
  if (!plan.algorithm) return false;
  if (plan.one_by_one) {
    Matmul single = p;
    single.batch = 1;
    single.addend = addend;
    for (int64_t i = 0; i < p.batch; ++i) {
      matmul(queue, single);
      auto advance = [](Operand& o, DType type) {
        o.data = static_cast<char*>(o.data) + o.stride * size_of(type);
      };
      advance(single.a, p.in), advance(single.b, p.in), advance(single.c, p.out),
          advance(single.addend, p.out);
    }
    return true;
  }
  point(key, plan, p.bias, p.pre);
  const float alpha32 = static_cast<float>(p.alpha), beta32 = static_cast<float>(p.beta);
  const bool f64 = p.in == DType::f64;
  check(cublasLtMatmul(queue.blas(), plan.descriptor.get(),
                       f64 ? static_cast<const void*>(&p.alpha) : &alpha32, p.b.data, plan.b.get(), p.a.data,
                       plan.a.get(), f64 ? static_cast<const void*>(&p.beta) : &beta32, addend.data,
                       plan.addend.get(), p.c.data, plan.c.get(), &*plan.algorithm, queue.workspace(),
                       static_cast<size_t>(CudaQueue::kWorkspaceBytes), queue.stream()),
        key);
  return true;
}

void matmul(CudaQueue& queue, const Matmul& p) {
  if (!try_matmul(queue, p))
    throw CudaError(fmt::format(
        "{}: no algorithm for {}; use sizes and leading dimensions that are multiples of 8, or f32", kName,
        words(key_of(p))));
}

}  // namespace sherd::cuda
