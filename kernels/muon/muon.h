// The passes of Muon over segments: momentum, update, packing, check. ops.h says what holds for all operations.
//
// Segments hold plain pointers; as with tensors, the caller keeps what they point to until the stream has run
// the work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// A piece of a momentum pass: `count` elements of one parameter, to be written at element `at` of the packed
/// message; -1: only the buffer moves, nothing is written.
struct MomentumSegment {
  void* buffer = nullptr;          // of the pass's dtype of states
  const void* gradient = nullptr;  // of the pass's dtype of gradients
  /// Of the pass's form. Read with l2 decay, otherwise ignored.
  const void* weight = nullptr;
  int64_t count = 0;
  int64_t at = 0;
  const uint16_t* low = nullptr;  // low halves of weight where the form is split
  Noise noise = {};               // read where buffer is rounded
};

/// For every element of every segment, in single f32 operations in this order (EMA form, as
/// torch.optim.Muon), with g = gradient * *factor (device memory; null: 1):
///   g' = l2 == 0 ? g : g + l2 * w;  buffer += (1-mu) * (g' - buffer);
///   packed = nesterov ? g' + mu * (buffer - g') : buffer.
/// The buffer is rounded as it is stored (rest.h), packed has its value before that. For a non-finite g' the buffer keeps its value and NaN is packed. packed: f32, bf16 or f16. With `skip`
/// (see AdamWCountArgs) no buffer changes; the packed values are the same. The result for an element depends
/// on that element alone, wherever it is in its segment.
struct MuonMomentumArgs {
  std::vector<MomentumSegment> segments;
  Ref packed{};
  float mu = 0;
  bool nesterov = true;
  float l2 = 0;
  const int64_t* skip = nullptr;
  const float* factor = nullptr;
  RestForms forms = {};
};

/// A piece of an update pass: w = decay * w + alpha * o for `count` elements, o at element `at` of the packed
/// message.
struct UpdateSegment {
  void* weight = nullptr;  // of the pass's form
  int64_t count = 0;
  int64_t at = 0;
  float decay = 1, alpha = 0;
  /// Receives w, rounded once to the pass's dtype of copies; may be null, and is unless the form is f32.
  void* copy = nullptr;
  uint16_t* low = nullptr;  // low halves of weight where the form is split
  Noise noise = {};         // read where weight is rounded
};

/// w = decay * w + alpha * packed, in f32 operations, for every element of every segment; with `skip`,
/// nothing. copy_dtype (f32, bf16 or f16) is that of the segments' copies. Of the forms, the master's alone counts.
struct MuonUpdateArgs {
  std::vector<UpdateSegment> segments;
  Ref packed{};
  const int64_t* skip = nullptr;
  DType copy_dtype = DType::f32;
  RestForms forms = {};
};

/// A piece of a packing pass: `count` elements from one packed buffer to another.
struct CopySegment {
  int64_t to = 0, from = 0, count = 0;
};

/// to[segment.to + i] = from[segment.from + i]; f32, bf16 or f16, rounded once. Segments of `to` do not
/// overlap each other, nor do the buffers.
struct CopySegmentsArgs {
  std::vector<CopySegment> segments;
  Ref to{}, from{};
};

/// Values that a check reads: `count` elements of a matrix, or of its state. Several segments may share a status.
struct CheckedSegment {
  void* values = nullptr;
  int64_t count = 0;
  int32_t* status = nullptr;  // a MatrixStatus
};

/// A status that is `fine` becomes `found` where a value of its segments is non-finite. Then the values become zero where
/// the status is not `fine`, if `clears`. With `skip`, nothing.
struct CheckFiniteArgs {
  std::vector<CheckedSegment> segments;
  MatrixStatus found = MatrixStatus::not_finite;
  bool clears = false;
  const int64_t* skip = nullptr;
  DType dtype = DType::f32;  // of all values: f32 or bf16
};

Work work_of(const Device& device, const MuonMomentumArgs& a);
Work work_of(const Device& device, const MuonUpdateArgs& a);
Work work_of(const Device& device, const CopySegmentsArgs& a);
Work work_of(const Device& device, const CheckFiniteArgs& a);

struct MuonKernels {
  static constexpr const char* kName = "muon";
  static const MuonKernels* reference();
  static const MuonKernels* cpu();
  static const MuonKernels* cuda();

  void (*muon_momentum)(ExecutionContext&, const MuonMomentumArgs&);
  void (*muon_update)(ExecutionContext&, const MuonUpdateArgs&);
  void (*copy_segments)(ExecutionContext&, const CopySegmentsArgs&);
  void (*check_finite)(ExecutionContext&, const CheckFiniteArgs&);
};

namespace ops {

/// Momentum, Nesterov, cast and pack in one pass. skip: i64 [1], read on the stream, or undefined. Gradients count times
/// `factor` (f32 [1]; undefined: 1), with the bits of ops::scale_by() before.
/// @throws ShapeMismatch, as the others, naming every segment that leaves its buffer or lacks a pointer.
void muon_momentum(Stream& s, const Tensor& packed, std::span<const MomentumSegment> segments, float mu,
                   bool nesterov, float l2 = 0, const Tensor& skip = {}, const Tensor& factor = {},
                   const RestForms& forms = {});
/// Unpack, scale, decay, update and copy in one pass.
void muon_update(Stream& s, std::span<const UpdateSegment> segments, const Tensor& packed,
                 const Tensor& skip = {}, DType copy_dtype = DType::f32, const RestForms& forms = {});
/// Counted in Device::copied_bytes().
void copy_segments(Stream& s, const Tensor& to, const Tensor& from, std::span<const CopySegment> segments);
/// One pass of reading; clearing reads the statuses alone where all are fine.
void check_finite(Stream& s, std::span<const CheckedSegment> segments, MatrixStatus found, bool clears,
                  const Tensor& skip = {}, DType dtype = DType::f32);

}  // namespace ops
}  // namespace sherd
