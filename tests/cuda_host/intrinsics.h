// CUDA's device functions that need no other thread: atomics, bits, rounding, minima. Through emulation.h.
#pragma once

#include <math.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>

// Atomics: integers only, for sums of floats in any order are forbidden.
namespace cuda_host {
template <class T>
concept AtomicInteger = std::is_integral_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8);
template <class T, class F>
T atomic_update(T* address, F next) {
  std::atomic_ref<T> a(*address);
  T old = a.load(std::memory_order_relaxed);
  while (!a.compare_exchange_weak(old, next(old), std::memory_order_relaxed)) {
  }
  return old;
}
}  // namespace cuda_host

template <cuda_host::AtomicInteger T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <cuda_host::AtomicInteger T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_sub(value, std::memory_order_relaxed);
}
template <cuda_host::AtomicInteger T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_and(value, std::memory_order_relaxed);
}
template <cuda_host::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_or(value, std::memory_order_relaxed);
}
template <cuda_host::AtomicInteger T>
T atomicXor(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_xor(value, std::memory_order_relaxed);
}
template <cuda_host::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return cuda_host::atomic_update(address, [=](T old) { return old > value ? old : value; });
}
template <cuda_host::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return cuda_host::atomic_update(address, [=](T old) { return old < value ? old : value; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return cuda_host::atomic_update(address, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
template <cuda_host::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
template <cuda_host::AtomicInteger T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}

// Memory.
inline void __threadfence() { asm volatile("" ::: "memory"); }
inline void __threadfence_block() { asm volatile("" ::: "memory"); }
inline void __threadfence_system() { asm volatile("" ::: "memory"); }
// clang-format off
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldca(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldlu(const T* p) { return *p; }
template <class T> T __ldcv(const T* p) { return *p; }
template <class T> void __stwb(T* p, std::type_identity_t<T> v) { *p = v; }
template <class T> void __stcg(T* p, std::type_identity_t<T> v) { *p = v; }
template <class T> void __stcs(T* p, std::type_identity_t<T> v) { *p = v; }
template <class T> void __stwt(T* p, std::type_identity_t<T> v) { *p = v; }
[[noreturn]] inline void __trap() { throw std::runtime_error("a kernel called __trap()"); }

// Bits.
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __double2hiint(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x)); }
inline double __hiloint2double(int hi, int lo) {
  return std::bit_cast<double>(uint64_t{static_cast<unsigned>(hi)} << 32 | static_cast<unsigned>(lo));
}
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned r = 0;
  for (unsigned i = 0; i < 4; ++i) r |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by) {
  return static_cast<unsigned>((uint64_t{hi} << 32 | lo) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by) {
  return static_cast<unsigned>((uint64_t{hi} << 32 | lo) >> (by & 31));
}
inline int __mul24(int a, int b) {  // the low 24 bits of each, signed
  return static_cast<int>(static_cast<unsigned>((a << 8 >> 8)) * static_cast<unsigned>((b << 8 >> 8)));
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
__extension__ using cuda_host_int128 = __int128;
__extension__ using cuda_host_uint128 = unsigned __int128;
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<cuda_host_int128>(a) * b >> 64);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<cuda_host_uint128>(a) * b >> 64);
}

// Arithmetic rounded to nearest (sources compiled with -ffp-contract=off).
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __frsqrt_rn(float a) { return static_cast<float>(1 / std::sqrt(static_cast<double>(a))); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __drcp_rn(double a) { return 1 / a; }

// Fast approximations on the device; here the host's functions.
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return static_cast<float>(std::pow(10.0, static_cast<double>(x))); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline void __sincosf(float x, float* s, float* c) { *s = std::sin(x); *c = std::cos(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return __frsqrt_rn(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float fdividef(float a, float b) { return a / b; }
inline double cospi(double x) { return std::cos(M_PI * std::fmod(x, 2.0)); }
inline double sinpi(double x) { return std::sin(M_PI * std::fmod(x, 2.0)); }
inline float cospif(float x) { return static_cast<float>(cospi(static_cast<double>(x))); }
inline float sinpif(float x) { return static_cast<float>(sinpi(static_cast<double>(x))); }
inline void sincospi(double x, double* s, double* c) { *s = sinpi(x); *c = cospi(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x); *c = cospif(x); }

// Conversions. Out of range they saturate, as on the device; NaN gives 0 (64 bits: the lowest).
namespace cuda_host {
template <class To, class From>
To to_integer(From x) {
  constexpr bool wide = sizeof(To) == 8;
  if (x != x) return wide ? (std::is_signed_v<To> ? std::numeric_limits<To>::min() : To(1) << 63) : To(0);
  if (x >= std::ldexp(From(1), std::numeric_limits<To>::digits)) return std::numeric_limits<To>::max();
  if (x <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return static_cast<To>(x);
}
}  // namespace cuda_host
#define CUDA_HOST_CONVERT(from, name, To, type)                                                             \
  inline type __##from##2##name##_rn(To x) { return cuda_host::to_integer<type>(std::nearbyint(x)); }       \
  inline type __##from##2##name##_rz(To x) { return cuda_host::to_integer<type>(std::trunc(x)); }           \
  inline type __##from##2##name##_rd(To x) { return cuda_host::to_integer<type>(std::floor(x)); }           \
  inline type __##from##2##name##_ru(To x) { return cuda_host::to_integer<type>(std::ceil(x)); }            \
  inline To __##name##2##from##_rn(type x) { return static_cast<To>(x); }
CUDA_HOST_CONVERT(float, int, float, int)
CUDA_HOST_CONVERT(float, uint, float, unsigned)
CUDA_HOST_CONVERT(float, ll, float, long long)
CUDA_HOST_CONVERT(float, ull, float, unsigned long long)
CUDA_HOST_CONVERT(double, ll, double, long long)
CUDA_HOST_CONVERT(double, ull, double, unsigned long long)
#undef CUDA_HOST_CONVERT
inline int __double2int_rn(double x) { return cuda_host::to_integer<int>(std::nearbyint(x)); }
inline int __double2int_rz(double x) { return cuda_host::to_integer<int>(std::trunc(x)); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }

// CUDA's overloads of min and max.
#define CUDA_HOST_MINMAX(A, B, R)                                                                             \
  constexpr R min(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); } \
  constexpr R max(A a, B b) { return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); }
CUDA_HOST_MINMAX(int, int, int)
CUDA_HOST_MINMAX(unsigned, unsigned, unsigned)
CUDA_HOST_MINMAX(int, unsigned, unsigned)
CUDA_HOST_MINMAX(unsigned, int, unsigned)
CUDA_HOST_MINMAX(long, long, long)
CUDA_HOST_MINMAX(unsigned long, unsigned long, unsigned long)
CUDA_HOST_MINMAX(long, unsigned long, unsigned long)
CUDA_HOST_MINMAX(unsigned long, long, unsigned long)
CUDA_HOST_MINMAX(long long, long long, long long)
CUDA_HOST_MINMAX(unsigned long long, unsigned long long, unsigned long long)
CUDA_HOST_MINMAX(long long, unsigned long long, unsigned long long)
CUDA_HOST_MINMAX(unsigned long long, long long, unsigned long long)
#undef CUDA_HOST_MINMAX
// A NaN loses, as with fminf.
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(float a, double b) { return std::fmin(static_cast<double>(a), b); }
inline double min(double a, float b) { return std::fmin(a, static_cast<double>(b)); }
inline double max(float a, double b) { return std::fmax(static_cast<double>(a), b); }
inline double max(double a, float b) { return std::fmax(a, static_cast<double>(b)); }
// clang-format on
