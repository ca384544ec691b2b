// A golden folder's model on any arrangement of ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "golden_folder.h"
#include "support/toy_model.h"

namespace sherd::test {

struct Arrangement {
  const char* name;
  int ranks = 1, tp = 1, ep = 1;
  Strategy strategy = Strategy::optim_grads_params;
  DType compute = DType::f32;
  bool recompute = false;
  int64_t logits_chunk = 7;  // divides nothing here
  bool sequence_parallel = false;
  nn::LoraOptions lora{};
  int replicas = 1;
  bool default_ep = false;  // CausalModelOptions::ep as it is: experts are parameters of their blocks
  int context = 1;
  LayoutPolicy layout = LayoutPolicy::ragged;
  bool logit_maxima = false;
  /// Ranks with different sequences.
  int data_ranks() const { return ranks / (tp * context); }
  std::vector<MeshDim> dims() const {
    std::vector<MeshDim> all = {{"shard", data_ranks() / replicas}};
    if (replicas > 1) all.insert(all.begin(), {"replicate", replicas});
    if (context > 1) all.push_back({"context", context});
    if (tp > 1) all.push_back({"tp", tp});
    return all;
  }
};

/// One rank's. Experts are distributed over `ep` ranks, the innermost ones, those of a tensor-parallel group
/// among them.
struct ArrangedModel {
  ArrangedModel(RankContext& rank, const nn::ModelDescription& m, const Arrangement& a, uint64_t seed = 0)
      : mesh(rank.world, a.dims()), context(nn::ContextParallel::of(mesh)) {
    nn::CausalModelOptions o{.tp = nn::TensorParallel::of(mesh),
                             .context = context,
                             .sequence_parallel = a.sequence_parallel,
                             .logits_chunk = a.logits_chunk,
                             .lora = a.lora,
                             .logit_maxima = a.logit_maxima};
    if (m.mixture.experts > 0 && !a.default_ep) {
      expert_mesh.emplace(rank.world,
                          std::vector<MeshDim>{{"expert_shard", a.ranks / a.ep}, {"expert", a.ep}});
      o.ep = nn::ExpertParallel::of(*expert_mesh);
    }
    model = causal_model(m, o);
    model->set_recompute(a.recompute);
    data_rank = rank.world->rank() / (a.tp * a.context);
    options.strategy = a.strategy;
    options.compute_dtype = a.compute;
    options.layout = a.layout;
    root.seed = seed;
  }
  void shard() {
    FullyShardOptions of_experts = options;
    of_experts.shard_dim = "expert_shard";
    for (size_t i = 0; i < model->blocks(); ++i)
      if (ModuleBase* experts = model->experts(i); experts != nullptr && expert_mesh)
        fully_shard(*experts, *expert_mesh, of_experts);
    for (size_t i = 0; i < model->blocks(); ++i) fully_shard(model->block(i), mesh, options);
    fully_shard(*model, mesh, options, root);
  }

  DeviceMesh mesh;
  nn::ContextParallel context;
  std::optional<DeviceMesh> expert_mesh;
  std::unique_ptr<nn::CausalModel> model;
  FullyShardOptions options;
  RootOptions root;
  int data_rank = 0;
};

}  // namespace sherd::test
