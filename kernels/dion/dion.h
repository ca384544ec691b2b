// Dion's choice of rows: norms, choice, gathering of the chosen rows and back. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// norms[b, r] = sum of |in[b, r, c]| over c, in double; infinite where it is NaN.
struct DionNormsArgs {
  int64_t rows = 0, cols = 0;  // of all matrices together
  const float* in = nullptr;
  double* norms = nullptr;
};

/// slots[b, r]: the number of chosen rows of matrix b before r, or -1 where r is not chosen. The `kept` rows with the
/// largest norms are chosen; of equal ones those with the lowest indices.
struct DionChooseArgs {
  int64_t batch = 0, rows = 0, kept = 0;
  const double* norms = nullptr;
  int32_t* slots = nullptr;
};

/// take: chosen[b, slots[b, r]] = all[b, r] for the chosen rows. put: the same back, and zeros in all other rows.
struct DionRowsArgs {
  int64_t batch = 0, rows = 0, kept = 0, cols = 0;
  const int32_t* slots = nullptr;
  float *all = nullptr, *chosen = nullptr;
};

/// A piece of a pass over momentum: `count` elements, whose results begin at element `at` of a message.
struct DionSegment {
  float* buffer = nullptr;
  int64_t count = 0;
  int64_t at = 0;
};

/// buffer *= factor where the result is zero; with `skip` (see AdamWCountArgs), nothing.
struct DionKeepArgs {
  std::vector<DionSegment> segments;
  Ref results{};
  float factor = 1;
  const int64_t* skip = nullptr;
};

Work work_of(const Device& device, const DionKeepArgs& a);

struct DionKernels {
  static constexpr const char* kName = "dion";
  static const DionKernels* reference();
  static const DionKernels* cpu();
  static const DionKernels* cuda();

  void (*norms)(ExecutionContext&, const DionNormsArgs&);
  void (*choose)(ExecutionContext&, const DionChooseArgs&);
  void (*take)(ExecutionContext&, const DionRowsArgs&);
  void (*put)(ExecutionContext&, const DionRowsArgs&);
  void (*keep)(ExecutionContext&, const DionKeepArgs&);
};

namespace ops {

/// Chooses `kept` rows of each matrix by their L1 norm. in f32 [batch, rows, cols]; norms f64 and slots i32 [batch, rows].
/// A matrix's choice depends on its values alone.
/// @throws ShapeMismatch; InvalidArgument unless 1 <= kept <= rows, or rows is 0.
void dion_choose(Stream& s, const Tensor& slots, const Tensor& norms, const Tensor& in, int64_t kept);
/// all f32 [batch, rows, cols], chosen f32 [batch, kept, cols], slots of dion_choose() for as many rows.
void dion_take(Stream& s, const Tensor& chosen, const Tensor& all, const Tensor& slots);
/// Every element of `all` is written.
void dion_put(Stream& s, const Tensor& all, const Tensor& chosen, const Tensor& slots);
/// results: f32, bf16 or f16. skip: i64 [1], read on the stream, or undefined.
void dion_keep(Stream& s, std::span<const DionSegment> segments, const Tensor& results, float factor,
               const Tensor& skip = {});

}  // namespace ops
}  // namespace sherd
