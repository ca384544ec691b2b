// Adapters of a decoder while it is built.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/name_pattern.h>
#include <sherd/nn/detail/adapter.h>
#include <sherd/nn/models/lora.h>
#include <sherd/nn/tensor_parallel.h>

namespace sherd {
class ShardRuntime;
}

namespace sherd::nn::detail {

/// The dimension along which the ranks of a tensor-parallel group share a weight [out, in].
enum class WeightCut { none, out, in };

/// All adapters of one model, by the weights that they belong to.
class Adapters {
 public:
  /// Declares a parameter of the module that the weight is of.
  using Declare = std::function<Parameter(std::string, Shape, Init)>;

  explicit Adapters(const LoraOptions& options);
  /// Appends the adapter of `weight` to `to` where `path` + `name` is a target.
  /// @param weight of this rank, [out, in]
  /// @param column of the product, the first that the weight makes
  void add(std::vector<Adapter>& to, const std::string& path, const std::string& name,
           const Parameter& weight, WeightCut cut, int64_t column, const TensorParallel& tp,
           const Declare& declare);

  const NamePattern& targets() const { return targets_; }
  bool empty() const { return all_.empty(); }
  /// Sets whether forwards add the products.
  void use(bool on) { *used_ = on; }
  /// Adds every pair's product to its weight, and sets b to 0. Collective; between steps.
  void fold(ShardRuntime& runtime) const;

 private:
  LoraOptions options_;
  NamePattern targets_;
  std::shared_ptr<bool> used_ = std::make_shared<bool>(true);
  std::vector<std::pair<Parameter, Adapter>> all_;
};

}  // namespace sherd::nn::detail
