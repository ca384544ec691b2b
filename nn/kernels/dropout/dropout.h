// Dropout whose mask is a function of a key and an element's place. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <string_view>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/random/random.h>

namespace sherd {

/// Key of a dropout's kept elements. Element c of *global* row r of one call is kept by a pure function of
/// this key, p, r and c. It does not depend on the ranks and microbatches of the rows, the dtype or the
/// device.
struct DropoutKey {
  uint64_t key = 0;       // of seed, step and site: make()
  uint32_t call = 0;      // how often the site was used before in this forward
  int64_t first_row = 0;  // the global number of the tensor's first row

  /// `site` names the place in the model.
  static constexpr uint64_t make(uint64_t seed, int64_t step, std::string_view site) {
    return hash64(hash64(seed, "dropout") + static_cast<uint64_t>(step), site);
  }
};

/// y = x / (1 - p) where the element is kept and 0 elsewhere; x, y [rows, cols]. Word c mod 4 of
/// philox4x32({c / 4, row, row >> 32, call}, key), row being first_row + r, decides: an element is dropped
/// when it is below p * 2^32. (Srivastava et al., Dropout, 2014.)
struct DropoutArgs {
  int64_t rows = 0, cols = 0;
  Ref x{}, y{};
  float p = 0;
  DropoutKey key{};

  uint32_t threshold() const { return static_cast<uint32_t>(static_cast<double>(p) * 0x1p32); }
};

struct DropoutKernels {
  static constexpr const char* kName = "dropout";
  static const DropoutKernels* reference();
  static const DropoutKernels* cpu();
  static const DropoutKernels* cuda();

  void (*dropout)(ExecutionContext&, const DropoutArgs&);
};

namespace ops {

/// Both directions: with the same key and p, dx comes of dy as y of x. Rows are those of the first dimension
/// (a tensor of one dimension is rows of one element); y may be x.
/// @throws InvalidArgument for p outside [0, 1), a negative first_row, or rows of 2^34 elements and more.
void dropout(Stream& s, const Tensor& y, const Tensor& x, float p, const DropoutKey& key);

}  // namespace ops
}  // namespace sherd
