// Segments of an update pass over weights and state in their rest forms. Private to optim/.
#pragma once

#include <vector>

#include <sherd/fsdp/noise_runs.h>

namespace sherd {

/// Addresses of the elements of weights, with their low halves, or of state.
class RestPiece {
 public:
  explicit RestPiece(const Tensor& values, const Tensor& low = {})
      : values_(static_cast<char*>(values.raw())),
        size_(size_of(values.dtype())),
        low_(low.defined() ? static_cast<uint16_t*>(low.raw()) : nullptr) {}
  void* at(int64_t i) const { return values_ + i * size_; }
  uint16_t* low_at(int64_t i) const { return low_ != nullptr ? low_ + i : nullptr; }

 private:
  char* values_;
  int64_t size_;
  uint16_t* low_;
};

/// Returns noise_runs() where the forms round, and one run without noise elsewhere.
inline std::vector<NoiseRun> rest_runs(const Parameter& p, const RestForms& forms, int64_t begin,
                                       int64_t count, const Tensor& updates) {
  if (forms.draws()) return noise_runs(p, begin, count, updates);
  return {{begin, count, {}}};
}

}  // namespace sherd
