#include <sherd/kernels/dion/dion.h>

#include <cmath>
#include <limits>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void dion_norms(ExecutionContext&, const DionNormsArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < a.cols; ++c) sum += std::abs(static_cast<double>(a.in[r * a.cols + c]));
    a.norms[r] = std::isnan(sum) ? std::numeric_limits<double>::infinity() : sum;
  }
}

// The definition: a row is chosen where fewer than `kept` rows come before it.
void dion_choose(ExecutionContext&, const DionChooseArgs& a) {
  for (int64_t b = 0; b < a.batch; ++b) {
    const double* norms = a.norms + b * a.rows;
    int32_t slot = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      int64_t before = 0;
      for (int64_t k = 0; k < a.rows; ++k) before += norms[k] > norms[r] || (norms[k] == norms[r] && k < r);
      a.slots[b * a.rows + r] = before < a.kept ? slot++ : -1;
    }
  }
}

void dion_take(ExecutionContext&, const DionRowsArgs& a) {
  for (int64_t row = 0; row < a.batch * a.rows; ++row)
    for (int64_t c = 0; a.slots[row] >= 0 && c < a.cols; ++c)
      a.chosen[(row / a.rows * a.kept + a.slots[row]) * a.cols + c] = a.all[row * a.cols + c];
}

void dion_put(ExecutionContext&, const DionRowsArgs& a) {
  for (int64_t row = 0; row < a.batch * a.rows; ++row)
    for (int64_t c = 0; c < a.cols; ++c)
      a.all[row * a.cols + c] =
          a.slots[row] < 0 ? 0 : a.chosen[(row / a.rows * a.kept + a.slots[row]) * a.cols + c];
}

void dion_keep(ExecutionContext&, const DionKeepArgs& a) {
  if (a.skip && *a.skip != 0) return;
  for (const DionSegment& s : a.segments)
    for (int64_t i = 0; i < s.count; ++i)
      if (get(a.results, s.at + i) == 0) s.buffer[i] *= a.factor;
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const DionKernels* DionKernels::reference() {
  static constexpr DionKernels table{
      .norms = reference::dion_norms,
      .choose = reference::dion_choose,
      .take = reference::dion_take,
      .put = reference::dion_put,
      .keep = reference::dion_keep,
  };
  return &table;
}

}  // namespace sherd
