// Batches of row-major matrices in device memory and the passes over them. Private to CUDA kernels.
//
// Every pass works in 16-byte vectors where the addresses allow it and element by element otherwise, with the
// same result to the bit.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::cuda {

/// Matrix i of a batch begins i * stride elements behind `data`; its rows are ld elements apart.
struct Matrices {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t batch = 1, rows = 0, cols = 0, ld = 0, stride = 0;

  int64_t bytes() const { return batch * stride * size_of(dtype); }
  /// Rows [row, row + count) x columns [col, col + width) of every matrix.
  Matrices block(int64_t row, int64_t col, int64_t count, int64_t width) const {
    Matrices b = *this;
    b.data = static_cast<char*>(data) + (row * ld + col) * size_of(dtype);
    b.rows = count;
    b.cols = width;
    return b;
  }
};

/// Matrices one behind the other without gaps, as tensors are.
inline Matrices dense(const void* data, DType dtype, int64_t batch, int64_t rows, int64_t cols) {
  return {const_cast<void*>(data), dtype, batch, rows, cols, cols, rows * cols};
}

/// Row distance of `cols` elements that makes every row begin at a multiple of 16 bytes.
inline int64_t padded_ld(int64_t cols, DType dtype) {
  const int64_t unit = 16 / size_of(dtype);
  return (cols + unit - 1) / unit * unit;
}

/// Hands out pieces of one allocation, each at a multiple of 256 bytes. Without memory it only counts.
class Carver {
 public:
  explicit Carver(void* memory = nullptr) : memory_(static_cast<char*>(memory)) {}
  template <class T>
  T* array(int64_t count) {
    char* at = memory_ ? memory_ + bytes_ : nullptr;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  /// With rows of padded_ld elements.
  Matrices matrices(DType dtype, int64_t batch, int64_t rows, int64_t cols) {
    Matrices m{nullptr, dtype, batch, rows, cols, padded_ld(cols, dtype), 0};
    m.stride = rows * m.ld;
    m.data = array<char>(m.bytes());
    return m;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

/// Carves `pieces` (Carver& -> a struct of pointers) out of the context's scratch, in one request.
template <class F>
auto carve(ExecutionContext& context, F pieces) {
  Carver counting;
  pieces(counting);
  Carver carver(context.scratch(counting.bytes()));
  return pieces(carver);
}

/// Operations of a transform besides conversion; the arrays are in device memory, one value per matrix.
struct Transform {
  /// Values are multiplied in double and rounded to f32 before anything else; 0 gives zeros, whatever the
  /// source holds. Null: 1.
  const double* scale = nullptr;
  float diagonal = 0;  // added to elements (i, i)
  /// A non-finite result sets the matrix's entry to MatrixStatus::not_finite.
  int32_t* status = nullptr;
};

/// to = from, converted; batch, rows and cols agree. f32, bf16 or f16; `from` may be f64.
void transform(ExecutionContext&, const Matrices& to, const Matrices& from, const Transform& = {});

/// to (f64) = from (f32) or its transpose; zeros where `status` is not 0.
void widen(ExecutionContext&, const Matrices& to, const Matrices& from, bool transposed,
           const int32_t* status);

/// Copies the elements below the diagonal to their mirror images above.
void mirror(ExecutionContext&, const Matrices& square);

/// Matrices whose entry of `status` is not 0 become zeros. Dense f32.
void clear_failed(ExecutionContext&, const Matrices& m, const int32_t* status);
/// Matrices whose entry of `live` is 0 become zeros. Dense f32.
void clear_dead(ExecutionContext&, const Matrices& m, const int32_t* live);
/// live[i] = 1 where matrix i has an element that is not 0; other entries keep their value. Dense f32.
void mark_live(ExecutionContext&, const Matrices& m, int32_t* live);

/// status[i] and scale[i] = 1 / (norm + eps), 0 unless fine; norm and status are those of the elements' sum
/// of squares in double, in an order that depends on the sizes alone. Dense f32. `partial` has norm_parts
/// doubles per matrix.
int64_t norm_parts(const Matrices& m);
void normalise(ExecutionContext&, const Matrices& m, float eps, double* partial, double* scale,
               int32_t* status);
/// The same of a Gram matrix, whose trace is that sum of squares; also squared[i] = scale[i]^2.
void normalise_gram(ExecutionContext&, const Matrices& gram, float eps, double* scale, double* squared,
                    int32_t* status);

/// c = beta * c, one [m, n] matrix of f32 or bf16; beta 0 does not read it.
void scale_matrix(ExecutionContext&, Ref c, int64_t m, int64_t n, int64_t ld, float beta);

}  // namespace sherd::cuda
