// A device with helpers that move test data in and out of it.
#pragma once

#include <gtest/gtest.h>
#include <sherd/kernels/ops.h>

#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::test {

using Floats = std::vector<float>;

inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline Floats normal(int64_t count, unsigned seed, float stddev = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution(0, stddev);
  Floats v(static_cast<size_t>(count));
  for (float& x : v) x = distribution(engine);
  return v;
}

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// The kernels under test, "cpu" or "cuda"; a program's own: kernels_under_test.cpp.
extern const char* const kFast;
extern const bool kCuda;
/// CUDA kernels run on the host, at some 10^7 threads a second: tests of big shapes take smaller ones.
extern const bool kEmulated;

/// ThreadSanitizer: one thread, for the OpenMP runtime is not instrumented and its barriers look like races.
inline std::shared_ptr<Device> make_lab_device(const std::string& kernels, int threads) {
  if (kernels == "cuda") return make_cuda_device({.label = "lab", .attention = AttentionMethod::own});
  return make_cpu_device(
      {.label = "lab", .kernels = parse_cpu_kernels(kernels), .threads = kThreadSanitizer ? 1 : threads});
}

struct Lab {
  explicit Lab(const std::string& kernels = kFast, int threads = 1)
      : Lab(make_lab_device(kernels, threads)) {}
  explicit Lab(std::shared_ptr<Device> d) : device(std::move(d)), s(device->compute()) {}

  Tensor empty(Shape shape, DType dtype = DType::f32) {
    return Tensor::empty(*device, std::move(shape), dtype, "test");
  }

  /// `values` rounded to `dtype`, a float type.
  Tensor tensor(Shape shape, const Floats& values, DType dtype = DType::f32) {
    Tensor f = empty(shape), t = empty(shape, dtype);
    ops::copy_from_host(s, f, values.data(), static_cast<int64_t>(values.size()) * 4);
    ops::cast(s, t, f);
    s.synchronize();  // before f's memory is reused from the host
    return t;
  }
  Tensor random(Shape shape, unsigned seed, DType dtype = DType::f32, float stddev = 1) {
    const int64_t n = numel_of(shape);
    return tensor(std::move(shape), normal(n, seed, stddev), dtype);
  }
  Tensor full(Shape shape, double value, DType dtype = DType::f32) {
    Tensor t = empty(std::move(shape), dtype);
    ops::fill(s, t, value);
    return t;
  }
  Tensor ints(Shape shape, const std::vector<int32_t>& values) {
    Tensor t = empty(std::move(shape), DType::i32);
    ops::copy_from_host(s, t, values.data(), static_cast<int64_t>(values.size()) * 4);
    return t;
  }
  /// A copy of t that begins one element after a boundary: no row of it can be read 16 bytes at a time.
  Tensor shifted(const Tensor& t) {
    Tensor moved = empty({t.numel() + 1}, t.dtype()).flat(1, t.numel() + 1).view(t.shape());
    ops::copy(s, moved, t);
    s.synchronize();  // before the memory of a temporary t is reused
    return moved;
  }
  Floats floats(const Tensor& t) { return ops::to_floats(s, t); }
  /// Values of several, one after the other.
  Floats floats(std::initializer_list<Tensor> tensors) {
    Floats all;
    for (const Tensor& t : tensors)
      for (const float v : floats(t)) all.push_back(v);
    return all;
  }

  std::shared_ptr<Device> device;
  Stream& s;
};

inline std::vector<uint32_t> bits(const Floats& v) {
  std::vector<uint32_t> b;
  for (float x : v) b.push_back(std::bit_cast<uint32_t>(x));
  return b;
}

/// |got - want| <= tolerance * (1 + |want|) for every element.
inline void expect_close(const Floats& got, const Floats& want, double tolerance,
                         const std::string& what = "") {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    // Negated, so that a NaN fails.
    if (!(std::abs(double(got[i]) - double(want[i])) <= tolerance * (1 + std::abs(double(want[i])))))
      FAIL() << what << ": element " << i << " is " << got[i] << ", expected " << want[i];
  }
}

/// Runs an experiment (Lab& -> Floats) with the fast and the reference kernels and compares.
template <class F>
void expect_same_as_reference(F experiment, double tolerance, const std::string& what = "") {
  Lab fast, slow("reference");
  expect_close(experiment(fast), experiment(slow), tolerance, what);
}

/// Same as above, to the bit.
template <class F>
void expect_bits_of_reference(F experiment, const std::string& what = "") {
  Lab fast, slow("reference");
  EXPECT_EQ(bits(experiment(fast)), bits(experiment(slow))) << what;
}

/// Same as above, to the bit on the CPU; CUDA's mathematical functions round differently from libm's.
template <class F>
void expect_bits_of_reference(F experiment, double cuda_tolerance, const std::string& what = "") {
  if (kCuda)
    expect_same_as_reference(experiment, cuda_tolerance, what);
  else
    expect_bits_of_reference(experiment, what);
}

/// One rounding of a value near 1.
inline double epsilon(DType t) { return t == DType::bf16 ? 0x1p-8 : 0x1p-23; }

/// Calls a reference kernel in double precision, outside any stream.
inline ExecutionContext& no_context() {
  thread_local ExecutionContext context;
  return context;
}
inline Ref ref(std::vector<double>& v) { return {v.data(), DType::f64}; }
inline std::vector<double> doubles(int64_t count, unsigned seed) {
  const Floats f = normal(count, seed);
  return {f.begin(), f.end()};
}

/// Compares an analytic gradient with central differences of `loss` in x.
template <class Loss>
void expect_gradient(std::vector<double>& x, const std::vector<double>& gradient, Loss loss,
                     double tolerance) {
  constexpr double h = 1e-4;
  for (size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + h;
    const double above = loss();
    x[i] = kept - h;
    const double below = loss();
    x[i] = kept;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * h), tolerance) << "component " << i;
  }
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace sherd::test
