// Parts that the modules of a decoder share: normalisations, and products that end in the residual stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/nn/detail/packed_linear.h>
#include <sherd/nn/kv_cache.h>
#include <sherd/nn/models/description.h>
#include <sherd/nn/models/detail/adapters.h>
#include <sherd/nn/sequence_parallel.h>

namespace sherd::nn::detail {

/// LayerNorm where there is a bias, else RMSNorm.
struct Norm {
  Parameter weight, bias;
  float eps = 0;
  float base = 0;  // see rms_norm()
  bool defined() const { return weight.defined(); }
  /// Normalises rows between regions: each rank's, where `rows` splits them.
  Var operator()(const Var& x, const SequenceRows& rows) const;
};

/// Context of a decoder's module: sizes, and the ranks that share it.
struct Context {
  ModelDescription model{};
  TensorParallel tp{};
  WeightLayout layout = WeightLayout::out_in;
  std::shared_ptr<Adapters> adapters = nullptr;  // of the model; null: none
  std::string path = {};                         // of the module that is built, "model.layers.0.mlp."
  bool logit_maxima = false;                     // as CausalModelOptions::logit_maxima
  Adapters::Declare in_layer = nullptr;          // of the layer where it is flat; null: each module's own

  /// The shape of a weight of so many inputs and outputs, and the dimensions that they are.
  Shape weight(int64_t in, int64_t out) const;
  int in_dim() const { return layout == WeightLayout::out_in ? 1 : 0; }
  int out_dim() const { return 1 - in_dim(); }
  /// The same for a module below the one that this is of.
  Context below(const std::string& name) const;
  /// Adds the adapter of `weight` to `to`, where there are adapters; see Adapters::add().
  void adapt(std::vector<Adapter>& to, const char* name, const Parameter& weight, WeightCut cut,
             int64_t column, const Adapters::Declare& declare) const;
  /// First values of matrices, and of those that add to the residual stream.
  Init values() const;
  Init residual_values() const;
  /// Returns the initial weights of norms: 1, or 0 where weights are distances from 1.
  Init norm_values() const { return constant(is_gemma(model) ? 0.0f : 1.0f); }
  Norm norm(Parameter weight) const { return {std::move(weight), {}, model.norm_eps, norm_base()}; }
  float norm_base() const { return is_gemma(model) ? 1.0f : 0.0f; }
};

/// The caches of one layer, one for each sequence of a forward; empty: no caches.
using LayerCaches = std::vector<KvCache::Layer*>;

/// Calls attend(inputs, batch, cache) for all sequences at once without a cache, else for each with its own. Returns the rows
/// of all.
/// @param inputs rows of all sequences, one after another
Var by_sequence(std::vector<Var> inputs, int64_t batch, const LayerCaches& caches,
                const std::function<Var(std::vector<Var>, int64_t, KvCache::Layer*)>& attend);

/// residual + the sum over the ranks of x w^T + bias: x holds all rows and some inputs on each rank, w is cut
/// along the inputs, and the bias, if there is one, is whole. Residual and result lie as `rows` says. The residual
/// may be undefined: nothing is added.
/// @param adapters of w
Var add_row_parallel(const Context& context, const SequenceRows& rows, const Var& residual, const Var& x,
                     const Parameter& w, const Parameter& bias, const std::vector<Adapter>& adapters);

}  // namespace sherd::nn::detail
