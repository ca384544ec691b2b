#include <sherd/kernels/soap/soap.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/kernels/device/cuda/launch.h>
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/gemm/cuda_matmul.h>
#include <sherd/kernels/gemm/cuda_matrices.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>
#include <sherd/kernels/rest/cuda_forms.h>
#include <sherd/kernels/soap/detail/state_tensors.h>

// Matrix by matrix, in double: products by cuBLASLt, eigenvectors and QR by cuSOLVER. It sees columns where these matrices have rows,
// so that it reads every matrix as its transpose.
//
// The host reads one word per matrix before the products: the steps so far decide between eigenvectors and QR.

namespace sherd::cuda {
namespace {

constexpr const char* kSoap = "soap_step";

/// All that a batch needs, for the largest side with a factor.
struct SoapWork {
  SoapStateOf<double> state;
  double *g, *update, *x, *y, *spare;       // [m, n]
  double *next, *product, *values, *signs;  // [k, k] or [k], of the side in work
  double *reflectors, *solver;
  char* syevd;
  int64_t* decisions;  // of each matrix: the steps so far, or -1 where nothing is done
  int32_t* places;     // [k]
  int* info;
};

/// Sizes of cuSOLVER's workspaces.
struct SoapSolverSizes {
  int64_t doubles = 0;
  size_t device_bytes = 0, host_bytes = 0;
};

__global__ void soap_begin(const float* in, float* out, int32_t* status, int64_t size) {
  bool finite = true;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    finite = finite && fabsf(in[i]) <= 3.402823466e38f;
    out[i] = 0;
  }
  if (!finite) atomicExch(status, static_cast<int32_t>(MatrixStatus::not_finite));
}

__global__ void soap_fine(int32_t* statuses, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    statuses[i] = static_cast<int32_t>(MatrixStatus::fine);
}

__global__ void soap_decide(int64_t* decision, const int32_t* status, const int64_t* skip,
                            const float* steps) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const bool steps_now =
      *status == static_cast<int32_t>(MatrixStatus::fine) && (skip == nullptr || *skip == 0);
  *decision = steps_now ? static_cast<int64_t>(*steps) : -1;
}

template <class To, class From>
__global__ void soap_convert(To* to, const From* from, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    to[i] = static_cast<To>(from[i]);
}

/// z[i, j] /= sqrt(max(values[j or i], eps))
__global__ void soap_whiten(double* z, const double* values, int64_t size, int64_t cols, bool by_column,
                            double eps) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x)
    z[i] /= sqrt(fmax(values[by_column ? i % cols : i / cols], eps));
}

__global__ void soap_signs(double* signs, const double* a, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    signs[i] = a[i * n + i] < 0 ? -1 : 1;
}

__global__ void soap_flip(double* a, const double* signs, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n * n;
       i += int64_t{gridDim.x} * blockDim.x)
    a[i] *= signs[i / n];
}

/// values[i] = the product of rows i of a and b. A warp for each row.
__global__ void soap_diagonal(double* values, const double* a, const double* b, int64_t n) {
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t i = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; i < n; i += warps) {
    double sum = 0;
    for (int64_t j = threadIdx.x % 32; j < n; j += 32) sum += a[i * n + j] * b[i * n + j];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) values[i] = sum;
  }
}

/// places[i]: the place of row i by descending value, equal ones in their order.
__global__ void soap_places(int32_t* places, const double* values, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    int32_t before = 0;
    for (int64_t k = 0; k < n; ++k) before += values[k] > values[i] || (values[k] == values[i] && k < i);
    places[i] = before;
  }
}

/// to[places[row], column] = from[row, column], or the same of columns.
__global__ void soap_permute(double* to, const double* from, const int32_t* places, int64_t size,
                             int64_t cols, bool rows) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / cols, col = i % cols;
    to[rows ? places[row] * cols + col : row * cols + places[col]] = from[i];
  }
}

/// m = beta m + (1 - beta) g, or the same of g^2
__global__ void soap_moment(double* moment, const double* g, int64_t size, double beta, bool squares) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x)
    moment[i] = beta * moment[i] + (1 - beta) * (squares ? g[i] * g[i] : g[i]);
}

__global__ void soap_adam(double* y, const double* squares, int64_t size, double correction1,
                          double correction2, double eps) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x)
    y[i] = y[i] / correction1 / (sqrt(squares[i] / correction2) + eps);
}

/// The step of one matrix whose state is widened.
class SoapCudaStep {
 public:
  SoapCudaStep(ExecutionContext& ctx, const SoapArgs& a, const SoapWork& w, const SoapSolverSizes& sizes,
               int64_t steps)
      : ctx_(ctx),
        queue_(queue_of(ctx)),
        m_(a.rows),
        n_(a.cols),
        c_(a.constants),
        w_(w),
        sizes_(sizes),
        t_(static_cast<double>(steps + 1)) {}

  void run() {
    const Side left{m_, w_.state.left, w_.state.left_basis, w_.state.left_values};
    const Side right{n_, w_.state.right, w_.state.right_basis, w_.state.right_values};
    const bool first = t_ == 1;
    to_right(w_.g, !first && right.factor, w_.x);
    to_left(w_.g, !first && left.factor, w_.y);
    if (left.factor) add_covariance(left, w_.x, right, true);
    if (right.factor) add_covariance(right, w_.y, left, false);
    if (left.factor) renew(left, first, true);
    if (right.factor) renew(right, first, false);
    if (first)
      check(cudaMemsetAsync(w_.update, 0, static_cast<size_t>(m_ * n_) * sizeof(double), queue_.stream()),
            kSoap);
    else
      adam(left, right);
  }

 private:
  struct Side {
    int64_t n;
    double *factor, *basis, *values;
  };

  void product(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double* a, double* b, double* c,
               double alpha = 1, double beta = 0) {
    Matmul p{.trans_a = trans_a,
             .trans_b = trans_b,
             .m = m,
             .n = n,
             .k = k,
             .in = DType::f64,
             .out = DType::f64,
             .alpha = alpha,
             .beta = beta};
    p.a = {a, trans_a ? m : k};
    p.b = {b, trans_b ? k : n};
    p.c = p.addend = {c, n};
    matmul(queue_, p);
  }
  template <class... P, class... A>
  void elementwise(void (*kernel)(P...), int64_t count, A&&... arguments) {
    launch(ctx_, kSoap, kernel, grid_for(count), std::forward<A>(arguments)...);
  }
  void copy(double* to, const double* from, int64_t count) {
    elementwise(soap_convert<double, double>, count, to, from, count);
  }

  // x = g B_R^T
  void to_right(double* g, bool rotates, double* x) {
    if (rotates) return product(false, true, m_, n_, n_, g, w_.state.right_basis, x);
    copy(x, g, m_ * n_);
  }
  // y = B_L g
  void to_left(double* g, bool rotates, double* y) {
    if (rotates) return product(false, false, m_, n_, m_, w_.state.left_basis, g, y);
    copy(y, g, m_ * n_);
  }

  void add_covariance(const Side& side, double* z, const Side& other, bool by_rows) {
    if (t_ > 1 && other.factor)
      elementwise(soap_whiten, m_ * n_, z, other.values, m_ * n_, n_, by_rows, c_.eps);
    const double w = (1 - c_.shampoo_beta) / (1 - std::pow(c_.shampoo_beta, t_));
    product(!by_rows, by_rows, side.n, side.n, other.n, z, z, side.factor, w / static_cast<double>(other.n),
            1 - w);
  }

  void renew(const Side& side, bool first, bool of_rows) {
    const int64_t k = side.n, size = m_ * n_;
    if (first) {
      copy(w_.next, side.factor, k * k);
      eigenvectors(k);
    } else {
      product(false, false, k, k, k, side.basis, side.factor, w_.next);
      orthonormal_rows(k);
      product(false, false, k, k, k, w_.next, side.factor, w_.product);
      elementwise(soap_diagonal, 32 * k, w_.values, w_.next, w_.product, k);
    }
    elementwise(soap_places, k, w_.places, w_.values, k);
    elementwise(soap_permute, k, side.values, w_.values, w_.places, k, int64_t{1}, true);
    elementwise(soap_permute, k * k, side.basis, w_.next, w_.places, k * k, k, true);
    copy(w_.spare, w_.state.exp_avg_sq, size);
    elementwise(soap_permute, size, w_.state.exp_avg_sq, w_.spare, w_.places, size, n_, of_rows);
  }

  void eigenvectors(int64_t k) {
    const Solver& solver = queue_.solver();
    auto host = std::make_shared<std::vector<char>>(sizes_.host_bytes);
    check(cusolverDnXsyevd(solver.handle, solver.parameters, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER,
                           k, CUDA_R_64F, w_.next, k, CUDA_R_64F, w_.values, CUDA_R_64F, w_.syevd,
                           sizes_.device_bytes, host->data(), sizes_.host_bytes, w_.info),
          "soap_step (cuSOLVER's syevd)");
    ctx_.keep(host);
    int info = 0;
    check(cudaMemcpyAsync(&info, w_.info, sizeof info, cudaMemcpyDeviceToHost, queue_.stream()), kSoap);
    check(cudaStreamSynchronize(queue_.stream()), kSoap);
    if (info != 0)
      throw Error("soap_step: cuSOLVER's syevd failed on a matrix of side " + std::to_string(k) +
                  " with info " + std::to_string(info));
  }

  void orthonormal_rows(int64_t k) {
    const Solver& solver = queue_.solver();
    const int size = static_cast<int>(k), work = static_cast<int>(sizes_.doubles);
    check(cusolverDnDgeqrf(solver.handle, size, size, w_.next, size, w_.reflectors, w_.solver, work, w_.info),
          "soap_step (cuSOLVER's geqrf)");
    // orgqr overwrites the diagonal of R.
    elementwise(soap_signs, k, w_.signs, w_.next, k);
    check(cusolverDnDorgqr(solver.handle, size, size, size, w_.next, size, w_.reflectors, w_.solver, work,
                           w_.info),
          "soap_step (cuSOLVER's orgqr)");
    elementwise(soap_flip, k * k, w_.next, w_.signs, k);
  }

  void adam(const Side& left, const Side& right) {
    const int64_t size = m_ * n_;
    elementwise(soap_moment, size, w_.state.exp_avg, w_.g, size, c_.beta1, false);
    to_right(w_.g, right.factor, w_.x);
    to_left(w_.x, left.factor, w_.y);
    elementwise(soap_moment, size, w_.state.exp_avg_sq, w_.y, size, c_.beta2, true);
    to_right(w_.state.exp_avg, right.factor, w_.x);
    to_left(w_.x, left.factor, w_.y);
    elementwise(soap_adam, size, w_.y, w_.state.exp_avg_sq, size, 1 - std::pow(c_.beta1, t_ - 1),
                1 - std::pow(c_.beta2, t_ - 1), c_.eps);
    double* back = w_.y;
    if (left.factor) {
      product(true, false, m_, n_, m_, left.basis, w_.y, w_.x);
      back = w_.x;
    }
    if (right.factor) return product(false, false, m_, n_, n_, back, right.basis, w_.update);
    copy(w_.update, back, size);
  }

  ExecutionContext& ctx_;
  CudaQueue& queue_;
  int64_t m_, n_;
  const SoapConstants& c_;
  const SoapWork& w_;
  const SoapSolverSizes& sizes_;
  double t_;
};

SoapSolverSizes soap_solver_sizes(const Solver& solver, const std::vector<int64_t>& sides) {
  SoapSolverSizes sizes;
  for (const int64_t k : sides) {
    const int size = static_cast<int>(k);
    int geqrf = 0, orgqr = 0;
    size_t device_bytes = 0, host_bytes = 0;
    check(cusolverDnDgeqrf_bufferSize(solver.handle, size, size, nullptr, size, &geqrf), kSoap);
    check(cusolverDnDorgqr_bufferSize(solver.handle, size, size, size, nullptr, size, nullptr, &orgqr),
          kSoap);
    check(cusolverDnXsyevd_bufferSize(solver.handle, solver.parameters, CUSOLVER_EIG_MODE_VECTOR,
                                      CUBLAS_FILL_MODE_UPPER, k, CUDA_R_64F, nullptr, k, CUDA_R_64F, nullptr,
                                      CUDA_R_64F, &device_bytes, &host_bytes),
          kSoap);
    sizes.doubles = std::max<int64_t>({sizes.doubles, geqrf, orgqr});
    sizes.device_bytes = std::max(sizes.device_bytes, device_bytes);
    sizes.host_bytes = std::max(sizes.host_bytes, host_bytes);
  }
  return sizes;
}

/// Returns memory for any matrix of the batch: with the factors that some of them have.
SoapWork soap_work(ExecutionContext& ctx, const SoapArgs& a, bool left, bool right,
                   const SoapSolverSizes& sizes) {
  const int64_t m = a.rows, n = a.cols, k = std::max<int64_t>({1, left ? m : 0, right ? n : 0});
  return carve(ctx, [&](Carver& carver) {
    const auto doubles = [&](int64_t count) { return carver.array<double>(count); };
    SoapWork w{};
    if (left) w.state = {.left = doubles(m * m), .left_basis = doubles(m * m), .left_values = doubles(m)};
    if (right) {
      w.state.right = doubles(n * n);
      w.state.right_basis = doubles(n * n);
      w.state.right_values = doubles(n);
    }
    w.state.exp_avg = doubles(m * n);
    w.state.exp_avg_sq = doubles(m * n);
    for (double** p : {&w.g, &w.update, &w.x, &w.y, &w.spare}) *p = doubles(m * n);
    for (double** p : {&w.next, &w.product}) *p = doubles(k * k);
    for (double** p : {&w.values, &w.signs, &w.reflectors}) *p = doubles(k);
    w.solver = doubles(sizes.doubles);
    w.syevd = carver.array<char>(static_cast<int64_t>(sizes.device_bytes));
    w.decisions = carver.array<int64_t>(static_cast<int64_t>(a.matrices.size()));
    w.places = carver.array<int32_t>(k);
    w.info = carver.array<int>(1);
    return w;
  });
}

/// Returns the steps so far of each matrix, or -1 where nothing is done. Waits for the stream.
std::vector<int64_t> soap_decisions(ExecutionContext& ctx, const SoapArgs& a, const SoapWork& w) {
  const int64_t size = a.rows * a.cols, count = static_cast<int64_t>(a.matrices.size());
  launch(ctx, kSoap, soap_fine, Grid{dim3(1), dim3(256)}, a.status, count);
  for (int64_t i = 0; i < count; ++i) {
    const SoapMatrix& matrix = a.matrices[static_cast<size_t>(i)];
    launch(ctx, kSoap, soap_begin, grid_for(size), a.in + i * size, a.out + i * size, a.status + i, size);
    launch(ctx, kSoap, soap_decide, Grid{dim3(1), dim3(32)}, w.decisions + i, a.status + i, matrix.skip,
           matrix.state.steps);
  }
  std::vector<int64_t> decisions(a.matrices.size());
  CudaQueue& queue = queue_of(ctx);
  check(cudaMemcpyAsync(decisions.data(), w.decisions, decisions.size() * sizeof(int64_t),
                        cudaMemcpyDeviceToHost, queue.stream()),
        kSoap);
  check(cudaStreamSynchronize(queue.stream()), kSoap);
  return decisions;
}

__global__ void soap_round(uint16_t* to, const double* from, int64_t count,
                           const __grid_constant__ Noise noise, NoiseUse use) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < count; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = rounded_bits(static_cast<float>(from[i]), Draw<1>(noise, i).at(use, 0));
}

__global__ void soap_set(float* at, float value) {
  if (threadIdx.x == 0 && blockIdx.x == 0) *at = value;
}

void soap_step(ExecutionContext& ctx, const SoapArgs& a) {
  if (a.matrices.empty()) return;
  bool left = false, right = false;
  for (const SoapMatrix& m : a.matrices) {
    left = left || m.state.left;
    right = right || m.state.right;
  }
  const int64_t size = a.rows * a.cols;
  std::vector<int64_t> sides;
  if (left && size > 0) sides.push_back(a.rows);
  if (right && size > 0) sides.push_back(a.cols);
  const SoapSolverSizes sizes =
      sides.empty() ? SoapSolverSizes{} : soap_solver_sizes(queue_of(ctx).solver(), sides);
  const SoapWork all = soap_work(ctx, a, left, right, sizes);
  const std::vector<int64_t> decisions = soap_decisions(ctx, a, all);
  for (size_t i = 0; i < decisions.size() && size > 0; ++i) {
    if (decisions[i] < 0) continue;
    const SoapState& state = a.matrices[i].state;
    SoapWork w = all;
    if (state.left == nullptr) w.state.left = w.state.left_basis = w.state.left_values = nullptr;
    if (state.right == nullptr) w.state.right = w.state.right_basis = w.state.right_values = nullptr;
    const auto convert = [&](auto* to, const auto* from, int64_t count) {
      using To = std::remove_pointer_t<decltype(to)>;
      using From = std::remove_cvref_t<decltype(*from)>;
      launch(ctx, kSoap, soap_convert<To, From>, grid_for(count), to, from, count);
    };
    const int64_t at = static_cast<int64_t>(i) * size;
    convert(w.g, a.in + at, size);
    for_soap_tensors(state, w.state, a.rows, a.cols,
                     [&](float* from, double* to, int64_t count) { convert(to, from, count); });
    for_soap_moments(a.matrices[i], w.state, [&](const bf16* from, double* to, NoiseUse) {
      convert(to, reinterpret_cast<const __nv_bfloat16*>(from), size);
    });
    SoapCudaStep(ctx, a, w, sizes, decisions[i]).run();
    for_soap_tensors(state, w.state, a.rows, a.cols,
                     [&](float* to, double* from, int64_t count) { convert(to, from, count); });
    convert(a.out + at, w.update, size);
    launch(ctx, kSoap, soap_set, Grid{dim3(1), dim3(32)}, state.steps, static_cast<float>(decisions[i] + 1));
    for_soap_moments(a.matrices[i], w.state, [&](bf16* to, double* from, NoiseUse use) {
      launch(ctx, kSoap, soap_round, grid_for(size), reinterpret_cast<uint16_t*>(to), from, size,
             a.matrices[i].noise(), use);
    });
  }
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const SoapKernels* SoapKernels::cuda() {
  static constexpr SoapKernels table{.soap_step = cuda::soap_step};
  return &table;
}

}  // namespace sherd
