// Whole tensors, brought together from the ranks that store them.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <sherd/kernels/ops.h>
#include <sherd/optim/state.h>

namespace sherd::test {

/// Whole tensors by "PARAMETER KEY". Elements that no rank saves are NaN.
class OwnedValues {
 public:
  using Map = std::map<std::string, std::vector<float>>;
  /// Adds what this rank saves. Any thread.
  void add(const std::vector<OwnedState>& states, Stream& stream) {
    for (const OwnedState& s : states) {
      const std::vector<float> local = s.saves ? ops::to_floats(stream, s.local) : std::vector<float>();
      const std::lock_guard lock(mutex_);
      std::vector<float>& all = values_[s.param.name() + " " + s.key];
      all.resize(static_cast<size_t>(numel_of(s.shape)), NAN);
      if (local.empty()) continue;
      const auto each = static_cast<int64_t>(local.size() / s.matrices.size());
      for (size_t k = 0; k < s.matrices.size(); ++k)
        std::copy_n(local.begin() + static_cast<int64_t>(k) * each, each, all.begin() + s.matrices[k] * each);
    }
  }
  /// Adds all of this rank's tensor-parallel part of a parameter, or of a state like it. Any thread.
  void add(const Parameter& p, const std::string& name, const std::vector<float>& part) {
    const std::lock_guard lock(mutex_);
    std::vector<float>& all = values_[name];
    all.resize(static_cast<size_t>(numel_of(p.global_shape())), NAN);
    for (const GlobalRun& run : p.global_runs({ParamIndex(0), ParamIndex(p.numel())}))
      std::copy_n(part.begin() + run.local.value, run.count, all.begin() + run.global.value);
  }
  /// Once every rank has added its part.
  const Map& values() const { return values_; }

 private:
  std::mutex mutex_;
  Map values_;
};

}  // namespace sherd::test
