// cuBLASLt's products of matrices, imitated on the host. See fake.h.
//
// It refuses what the library refuses where that is easy to get wrong: types that do not go together, leading
// dimensions below a column, GELU's auxiliary matrix with a leading dimension that is not a multiple of 8,
// row-major results with an epilogue, and pointers less aligned than the search for an algorithm was promised
// (256 bytes unless the preference says less).
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "fake.h"
#include "late.h"

struct cublasLtContext {};

namespace {

using cuda_host::Live;

// Content of the opaque structures.
struct Layout {
  cudaDataType type;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows, cols;
  int64_t ld;
  int64_t batch_stride = 0;
  int32_t batch_count = 1;
};
struct Product {
  int32_t compute, scale_type;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N, trans_c = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1, aux_type = -1;
  void* bias = nullptr;
  int64_t bias_batch_stride = 0;
  void* aux = nullptr;
  int64_t aux_ld = 0, aux_batch_stride = 0;
  int32_t fill_mode = CUBLAS_FILL_MODE_FULL, sm_count_target = 0;
  int8_t fast_accumulation = 0;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t search_mode = 0, reduction_schemes = 0, implementations = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
  float waves = 0;
};
struct Algorithm {
  uint64_t mark;
  uint32_t alignment[4];
};
constexpr uint64_t kMark = 0x616c676f;

template <class Inner, class Outer>
Inner& inside(Outer* outer) {
  static_assert(sizeof(Inner) <= sizeof(*outer) && std::is_trivially_copyable_v<Inner>);
  return *reinterpret_cast<Inner*>(outer->data);
}
template <class Inner, class Outer>
const Inner& inside(const Outer* outer) {
  return inside<Inner>(const_cast<Outer*>(outer));
}

template <class Outer, class Inner>
cublasStatus_t create(Outer** handle, const Inner& value) {
  *handle = new Outer{};
  inside<Inner>(*handle) = value;
  cuda_host::count_live(&Live::descriptors, 1);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Outer>
cublasStatus_t destroy(Outer* handle) {
  if (!handle) return CUBLAS_STATUS_SUCCESS;
  delete handle;
  cuda_host::count_live(&Live::descriptors, -1);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t assign(T& field, const void* value, size_t bytes) {
  if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

size_t bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_64F ? 8 : 2; }

double load(const void* p, cudaDataType type, int64_t i) {
  if (type == CUDA_R_64F) return static_cast<const double*>(p)[i];
  if (type == CUDA_R_32F) return static_cast<const float*>(p)[i];
  if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return __half2float(static_cast<const __half*>(p)[i]);
}
void store(void* p, cudaDataType type, int64_t i, double exact) {
  const auto value = static_cast<float>(exact);
  if (type == CUDA_R_64F)
    static_cast<double*>(p)[i] = exact;
  else if (type == CUDA_R_32F)
    static_cast<float*>(p)[i] = value;
  else if (type == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(value);
  else
    static_cast<__half*>(p)[i] = __float2half_rn(value);
}

/// 10 bits of mantissa, rounded to nearest even.
float to_tf32(float x) {
  auto word = std::bit_cast<uint32_t>(x);
  if ((word & 0x7f800000) == 0x7f800000) return x;
  word += 0xfff + (word >> 13 & 1);
  return std::bit_cast<float>(word & ~uint32_t{0x1fff});
}

float gelu(float x) {
  constexpr double k = 0.7978845608028654;  // sqrt(2 / pi)
  const double v = x;
  return static_cast<float>(0.5 * v * (1 + std::tanh(k * (v + 0.044715 * v * v * v))));
}

/// Its derivative.
float gelu_slope(float x) {
  constexpr double k = 0.7978845608028654, cubic = 0.044715;
  const double v = x, t = std::tanh(k * (v + cubic * v * v * v));
  return static_cast<float>(0.5 * (1 + t) + 0.5 * v * (1 - t * t) * k * (1 + 3 * cubic * v * v));
}

int64_t position(const Layout& l, int64_t row, int64_t col, int64_t batch) {
  return batch * l.batch_stride + (l.order == CUBLASLT_ORDER_COL ? row + col * l.ld : row * l.ld + col);
}

bool sound(const Layout& l) {
  const auto line = static_cast<int64_t>(l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols);
  return (l.order == CUBLASLT_ORDER_COL || l.order == CUBLASLT_ORDER_ROW) && l.rows > 0 && l.cols > 0 &&
         l.ld >= line && l.batch_count > 0;
}

bool has_bias(const Product& p) { return (p.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
bool has_gelu(const Product& p) { return (p.epilogue & CUBLASLT_EPILOGUE_GELU) != 0; }
bool is_backward(const Product& p) { return p.epilogue == CUBLASLT_EPILOGUE_DGELU; }
bool has_aux(const Product& p) { return (p.epilogue & 128) != 0; }

cublasStatus_t check(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const uint64_t m = p.trans_a == CUBLAS_OP_N ? a.rows : a.cols,
                 k = p.trans_a == CUBLAS_OP_N ? a.cols : a.rows;
  const uint64_t n = p.trans_b == CUBLAS_OP_N ? b.cols : b.rows,
                 l = p.trans_b == CUBLAS_OP_N ? b.rows : b.cols;
  if (!sound(a) || !sound(b) || !sound(c) || !sound(d) || k != l || d.rows != m || d.cols != n ||
      c.rows != m || c.cols != n || b.batch_count != a.batch_count || c.batch_count != a.batch_count ||
      d.batch_count != a.batch_count)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool f64 = a.type == CUDA_R_64F && b.type == a.type && c.type == a.type && d.type == a.type &&
                   p.compute == CUBLAS_COMPUTE_64F && p.scale_type == CUDA_R_64F;
  const bool types = a.type == b.type && c.type == d.type &&
                     (a.type == CUDA_R_32F || a.type == CUDA_R_16BF || a.type == CUDA_R_16F) &&
                     (d.type == CUDA_R_32F || d.type == a.type);
  const bool compute = p.compute == CUBLAS_COMPUTE_32F || p.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                       (p.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F);
  if ((!f64 && (!types || !compute || p.scale_type != CUDA_R_32F)) ||
      p.pointer_mode != CUBLASLT_POINTER_MODE_HOST || p.trans_c != CUBLAS_OP_N ||
      p.fill_mode != CUBLAS_FILL_MODE_FULL)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  switch (p.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (d.order != CUBLASLT_ORDER_COL || (has_bias(p) && p.bias_type != -1 && p.bias_type != d.type) ||
      (has_aux(p) && (p.aux_ld % 8 != 0 || p.aux_ld < static_cast<int64_t>(m))))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/// op(x) of one member of a batch, row after row.
void pack(std::vector<double>& out, const void* x, const Layout& l, bool transpose, int64_t batch,
          bool tf32) {
  const auto rows = static_cast<int64_t>(l.rows), cols = static_cast<int64_t>(l.cols);
  out.resize(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const double v = load(x, l.type, position(l, r, c, batch));
      out[static_cast<size_t>(transpose ? c * rows + r : r * cols + c)] =
          tf32 ? static_cast<double>(to_tf32(static_cast<float>(v))) : v;
    }
}

/// out[rows, n] = a[rows, k] b[k, n], summed in double.
template <int rows>
void multiply(double* out, const double* a, const double* b, int64_t n, int64_t k) {
  std::fill(out, out + rows * n, 0.0);
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const double v = b[i * n + j];
      for (int r = 0; r < rows; ++r) out[r * n + j] += a[r * k + i] * v;
    }
}

void run(const Product& p, double alpha, const void* a, const Layout& al, const void* b, const Layout& bl,
         double beta, const void* c, const Layout& cl, void* d, const Layout& dl) {
  const auto m = static_cast<int64_t>(dl.rows), n = static_cast<int64_t>(dl.cols);
  const auto k = static_cast<int64_t>(p.trans_a == CUBLAS_OP_N ? al.cols : al.rows);
  const bool tf32 = p.compute == CUBLAS_COMPUTE_32F_FAST_TF32, f64 = p.scale_type == CUDA_R_64F;
  const auto bias_type = p.bias_type == -1 ? dl.type : static_cast<cudaDataType>(p.bias_type);
  const auto aux_type = p.aux_type == -1 ? dl.type : static_cast<cudaDataType>(p.aux_type);
  constexpr int64_t kRows = 4;
  std::vector<double> pa, pb;
  std::vector<double> sums(static_cast<size_t>(kRows * n));
  for (int64_t batch = 0; batch < dl.batch_count; ++batch) {
    if (alpha != 0) {
      pack(pa, a, al, p.trans_a != CUBLAS_OP_N, batch, tf32);
      pack(pb, b, bl, p.trans_b != CUBLAS_OP_N, batch, tf32);
    }
    for (int64_t first = 0; first < m; first += kRows) {
      const int64_t rows = std::min(kRows, m - first);
      if (alpha != 0) {
        const double* of_a = &pa[static_cast<size_t>(first * k)];
        if (rows == kRows)
          multiply<kRows>(sums.data(), of_a, pb.data(), n, k);
        else
          for (int64_t r = 0; r < rows; ++r)
            multiply<1>(&sums[static_cast<size_t>(r * n)], of_a + r * k, pb.data(), n, k);
      }
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t col = 0; col < n; ++col) {
          const int64_t row = first + r;
          // f32 sums are rounded before the epilogue, f64 ones are not.
          const double sum = alpha == 0 ? 0 : sums[static_cast<size_t>(r * n + col)];
          const auto rounded = [&](double x) { return f64 ? x : static_cast<double>(static_cast<float>(x)); };
          double v = rounded(alpha * rounded(sum));
          if (beta != 0) v = rounded(v + beta * load(c, cl.type, position(cl, row, col, batch)));
          if (has_bias(p)) v = rounded(v + load(p.bias, bias_type, batch * p.bias_batch_stride + row));
          const int64_t aux_at = batch * p.aux_batch_stride + row + col * p.aux_ld;
          if (is_backward(p))
            v = rounded(v * gelu_slope(static_cast<float>(load(p.aux, aux_type, aux_at))));
          else if (has_aux(p))
            store(p.aux, aux_type, aux_at, v);
          store(d, dl.type, position(dl, row, col, batch),
                has_gelu(p) ? static_cast<double>(gelu(static_cast<float>(v))) : v);
        }
    }
  }
}

bool aligned(const void* p, uint32_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

}  // namespace

#define ENTER(function) \
  if (const int code = cuda_host::enter(#function)) return static_cast<cublasStatus_t>(code)

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ENTER(cublasLtCreate);
  *handle = new cublasLtContext;
  cuda_host::count_live(&Live::handles, 1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  ENTER(cublasLtDestroy);
  delete handle;
  cuda_host::count_live(&Live::handles, -1);
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (size < sizeof *desc) return CUBLAS_STATUS_ALLOC_FAILED;
  inside<Product>(desc) = {.compute = compute, .scale_type = scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  ENTER(cublasLtMatmulDescCreate);
  return create(desc, Product{.compute = compute, .scale_type = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  ENTER(cublasLtMatmulDescSetAttribute);
  auto& p = inside<Product>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return assign(p.compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return assign(p.scale_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return assign(p.pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(p.trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(p.trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return assign(p.trans_c, value, bytes);
    case CUBLASLT_MATMUL_DESC_FILL_MODE:
      return assign(p.fill_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(p.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(p.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return assign(p.bias_batch_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return assign(p.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return assign(p.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return assign(p.aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      return assign(p.aux_batch_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return assign(p.aux_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return assign(p.sm_count_target, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return assign(p.fast_accumulation, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
  if (size < sizeof *layout) return CUBLAS_STATUS_ALLOC_FAILED;
  inside<Layout>(layout) = {.type = type, .rows = rows, .cols = cols, .ld = ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  ENTER(cublasLtMatrixLayoutCreate);
  return create(layout, Layout{.type = type, .rows = rows, .cols = cols, .ld = ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  ENTER(cublasLtMatrixLayoutSetAttribute);
  auto& l = inside<Layout>(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return assign(l.type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return assign(l.order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return assign(l.rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return assign(l.cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return assign(l.ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return assign(l.batch_count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return assign(l.batch_stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t size) {
  if (size < sizeof *preference) return CUBLAS_STATUS_ALLOC_FAILED;
  inside<Preference>(preference) = Preference{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  ENTER(cublasLtMatmulPreferenceCreate);
  return create(preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  ENTER(cublasLtMatmulPreferenceSetAttribute);
  auto& p = inside<Preference>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return assign(p.search_mode, value, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(p.reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(p.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(p.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(p.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(p.alignment[3], value, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
      return assign(p.waves, value, bytes);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return assign(p.implementations, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  ENTER(cublasLtMatmulAlgoGetHeuristic);
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted < 1 || !results || !found) return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  if (inside<Layout>(d).batch_count > 1) ENTER(cublasLtMatmulAlgoGetHeuristic of a batch);
  if (inside<Product>(desc).epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    ENTER(cublasLtMatmulAlgoGetHeuristic of an epilogue);
  const cublasStatus_t status = check(inside<Product>(desc), inside<Layout>(a), inside<Layout>(b),
                                      inside<Layout>(c), inside<Layout>(d));
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  results[0] = cublasLtMatmulHeuristicResult_t{};
  Algorithm algorithm{kMark, {}};
  const Preference p = preference ? inside<Preference>(preference) : Preference{};
  std::copy_n(p.alignment, 4, algorithm.alignment);
  inside<Algorithm>(&results[0].algo) = algorithm;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  ENTER(cublasLtMatmulAlgoCheck);
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algorithm || !result || inside<Algorithm>(algorithm).mark != kMark) return CUBLAS_STATUS_INVALID_VALUE;
  *result = cublasLtMatmulHeuristicResult_t{};
  result->algo = *algorithm;
  return result->state = check(inside<Product>(desc), inside<Layout>(a), inside<Layout>(b), inside<Layout>(c),
                               inside<Layout>(d));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t stream) {
  ENTER(cublasLtMatmul);
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !alpha || !beta || !a || !b || !d || !a_layout || !b_layout || !c_layout || !d_layout)
    return CUBLAS_STATUS_INVALID_VALUE;
  const Product p = inside<Product>(desc);
  const Layout al = inside<Layout>(a_layout), bl = inside<Layout>(b_layout), cl = inside<Layout>(c_layout),
               dl = inside<Layout>(d_layout);
  if (const cublasStatus_t status = check(p, al, bl, cl, dl)) return status;
  const auto scalar = [&](const void* x) {
    return p.scale_type == CUDA_R_64F ? *static_cast<const double*>(x)
                                      : static_cast<double>(*static_cast<const float*>(x));
  };
  const double by = scalar(alpha), keep = scalar(beta);
  if ((keep != 0 && !c) || (has_bias(p) && !p.bias) || (has_aux(p) && !p.aux))
    return CUBLAS_STATUS_INVALID_VALUE;
  uint32_t alignment[4] = {static_cast<uint32_t>(bytes_of(al.type)), static_cast<uint32_t>(bytes_of(bl.type)),
                           static_cast<uint32_t>(bytes_of(cl.type)),
                           static_cast<uint32_t>(bytes_of(dl.type))};
  if (algorithm) {
    if (inside<Algorithm>(algorithm).mark != kMark) return CUBLAS_STATUS_INVALID_VALUE;
    std::copy_n(inside<Algorithm>(algorithm).alignment, 4, alignment);
  }
  if (!aligned(a, alignment[0]) || !aligned(b, alignment[1]) || (keep != 0 && !aligned(c, alignment[2])) ||
      !aligned(d, alignment[3]))
    return CUBLAS_STATUS_INVALID_VALUE;
  cuda_host::issue_on(stream, [=] { run(p, by, a, al, b, bl, keep, c, cl, d, dl); });
  return CUBLAS_STATUS_SUCCESS;
}
