// Segments of an update pass over weights and state in their rest forms. Private to optim/.
#pragma once

#include <vector>

#include <sherd/fsdp/noise_runs.h>

namespace sherd {

/// Addresses of elements from `begin` on, which are the tensor's; null for an undefined one.
class RestPiece {
 public:
  explicit RestPiece(const Tensor& values, int64_t begin = 0)
      : values_(static_cast<char*>(values.raw())), size_(size_of(values.dtype())), begin_(begin) {}
  void* at(int64_t i) const { return values_ != nullptr ? values_ + (i - begin_) * size_ : nullptr; }

 private:
  char* values_;
  int64_t size_, begin_;
};

/// Returns noise_runs() where the forms round, and one run without noise elsewhere.
inline std::vector<NoiseRun> rest_runs(const Parameter& p, const RestForms& forms, int64_t begin,
                                       int64_t count, const Tensor& updates) {
  if (forms.draws()) return noise_runs(p, begin, count, updates);
  return {{begin, count, {}}};
}

}  // namespace sherd
