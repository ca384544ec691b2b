// Functions of cuBLASLt and cuSOLVER. Their libraries are loaded at the first call: they take 190 MiB of a process's memory,
// which runs on CPUs do without. Private to the CUDA backends.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <atomic>

namespace sherd::cuda {

/// The address of `function`: of the program or of a library that it has loaded, else of `library` (a soname).
/// Any thread.
/// @throws CudaError that names the library and the remedy.
void* find_function(const char* library, const char* function);

template <class F>
class LazyFunction;

/// Any thread may call it. It throws as find_function() does, at the first call only.
template <class Result, class... Arguments>
class LazyFunction<Result(Arguments...)> {
 public:
  constexpr LazyFunction(const char* library, const char* name) : library_(library), name_(name) {}
  Result operator()(Arguments... arguments) const { return address()(arguments...); }
  /// Finds the function: an error comes here and not in a step.
  void load() const { address(); }

 private:
  using Address = Result (*)(Arguments...);
  Address address() const {
    Address found = address_.load(std::memory_order_relaxed);
    if (!found) {
      found = reinterpret_cast<Address>(find_function(library_, name_));
      address_.store(found, std::memory_order_relaxed);
    }
    return found;
  }

  const char* library_;
  const char* name_;
  mutable std::atomic<Address> address_ = nullptr;
};

#define SHERD_TEXT_OF(x) #x
#define SHERD_SONAME(library, version) "lib" #library ".so." SHERD_TEXT_OF(version)
#define SHERD_LAZY(soname, name) \
  inline const LazyFunction<decltype(::name)> name { soname, #name }

// They hide the functions of the same names within sherd::cuda.
#define SHERD_CUBLAS_LT(name) SHERD_LAZY(SHERD_SONAME(cublasLt, CUBLAS_VER_MAJOR), name)
SHERD_CUBLAS_LT(cublasLtCreate);
SHERD_CUBLAS_LT(cublasLtDestroy);
SHERD_CUBLAS_LT(cublasLtGetStatusString);
SHERD_CUBLAS_LT(cublasLtMatmul);
SHERD_CUBLAS_LT(cublasLtMatmulAlgoCheck);
SHERD_CUBLAS_LT(cublasLtMatmulAlgoGetHeuristic);
SHERD_CUBLAS_LT(cublasLtMatmulDescCreate);
SHERD_CUBLAS_LT(cublasLtMatmulDescDestroy);
SHERD_CUBLAS_LT(cublasLtMatmulDescSetAttribute);
SHERD_CUBLAS_LT(cublasLtMatmulPreferenceCreate);
SHERD_CUBLAS_LT(cublasLtMatmulPreferenceDestroy);
SHERD_CUBLAS_LT(cublasLtMatmulPreferenceSetAttribute);
SHERD_CUBLAS_LT(cublasLtMatrixLayoutCreate);
SHERD_CUBLAS_LT(cublasLtMatrixLayoutDestroy);
SHERD_CUBLAS_LT(cublasLtMatrixLayoutSetAttribute);

#define SHERD_CUSOLVER(name) SHERD_LAZY(SHERD_SONAME(cusolver, CUSOLVER_VER_MAJOR), name)
SHERD_CUSOLVER(cusolverDnCreate);
SHERD_CUSOLVER(cusolverDnCreateParams);
SHERD_CUSOLVER(cusolverDnDestroy);
SHERD_CUSOLVER(cusolverDnDestroyParams);
SHERD_CUSOLVER(cusolverDnDgeqrf);
SHERD_CUSOLVER(cusolverDnDgeqrf_bufferSize);
SHERD_CUSOLVER(cusolverDnDorgqr);
SHERD_CUSOLVER(cusolverDnDorgqr_bufferSize);
SHERD_CUSOLVER(cusolverDnSetDeterministicMode);
SHERD_CUSOLVER(cusolverDnSetStream);
SHERD_CUSOLVER(cusolverDnXgesvd);
SHERD_CUSOLVER(cusolverDnXgesvd_bufferSize);
SHERD_CUSOLVER(cusolverDnXsyevd);
SHERD_CUSOLVER(cusolverDnXsyevd_bufferSize);

#undef SHERD_CUSOLVER
#undef SHERD_CUBLAS_LT
#undef SHERD_LAZY
#undef SHERD_SONAME
#undef SHERD_TEXT_OF

}  // namespace sherd::cuda
