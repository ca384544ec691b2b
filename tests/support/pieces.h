// A module of parameters that tensor and expert parallelism cut in every way; gradients are put in by hand.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "support/toy_model.h"

namespace sherd::test {

/// Spread of the ranks: replicas x shards x tp for most parameters, (all / experts) x experts for the
/// experts'.
struct Spread {
  int replicas = 1, shard = 1, tp = 1, experts = 1;
  int ranks() const { return replicas * shard * tp; }
  DeviceMesh mesh(RankContext& r) const {
    return DeviceMesh(r.world, {{"replicate", replicas}, {"shard", shard}, {"tp", tp}});
  }
  DeviceMesh expert_mesh(RankContext& r) const {
    return DeviceMesh(r.world, {{"expert_shard", ranks() / experts}, {"expert", experts}});
  }
};

/// Registers a parameter of shape `whole`, cut along dimension `d` over mesh dimension `dim`.
class Cutter {
 public:
  Cutter(const DeviceMesh& mesh, std::string dim)
      : dim_(std::move(dim)), parts_(mesh.size(dim_)), index_(mesh.coordinate(dim_)) {}
  template <class Make>
  Parameter cut(Make make, Shape whole, int d, std::vector<int64_t> blocks = {}) const {
    whole[static_cast<size_t>(d)] /= parts_;
    if (d == (whole.size() == 3 ? 1 : 0))
      for (int64_t& b : blocks) b /= parts_;
    Parameter p = make(whole);
    if (!blocks.empty()) p.set_row_blocks(blocks);
    p.set_tensor_shard({dim_, d, parts_, index_});
    return p;
  }

 private:
  std::string dim_;
  int parts_, index_;
};

class Pieces : public nn::Module<Pieces> {
 public:
  /// @param wide factor of the columns
  Pieces(RankContext& r, const Spread& spread, int64_t wide = 1)
      : mesh_(spread.mesh(r)), expert_mesh_(spread.expert_mesh(r)), experts_(expert_mesh_, wide) {
    const Cutter tp(mesh_, "tp");
    const auto named = [&](const char* name) {
      return [this, name](const Shape& s) { return param(name, s, normal(1)); };
    };
    tp.cut(named("qkv"), {24, 5 * wide}, 0, {12, 4, 8});
    tp.cut(named("rows"), {8, 3 * wide}, 0);
    tp.cut(named("columns"), {7, 8 * wide}, 1);
    param("whole", {9}, normal(1));
    param("ones", {3}, constant(1));
    child("experts", experts_);
  }
  void wrap(const FullyShardOptions& options = {}, const RootOptions& root = {}) {
    FullyShardOptions own = options;
    own.shard_dim = "expert_shard";
    own.gradient_ranks = 1;  // summed, not averaged
    fully_shard(experts_, expert_mesh_, own);
    fully_shard(*this, mesh_, options, root);
  }
  const DeviceMesh& mesh() const { return mesh_; }

  /// Forward and backward: every gradient element is gradient(its index in the whole parameter) afterwards.
  void run(Device& device) { run_pass(*this, Tensor::empty(device, {1}, DType::f32, "test")); }
  nn::Var forward(const nn::Var& x) {
    return experts_(with_gradients(x, own_parameters(), [this] { put_gradients(*this, 1); }));
  }
  /// Some are zero.
  static float gradient(int64_t i) { return i % 7 == 3 ? 0 : static_cast<float>(std::sin(0.7 * double(i))); }

 private:
  // Every rank's contribution: the factor times what the whole gradient shall be.
  static void put_gradients(ModuleBase& m, float factor) {
    for (auto& p : m.own_parameters()) {
      const Tensor g = p.grad();
      std::vector<float> values(static_cast<size_t>(p.numel()));
      for (auto& run : p.global_runs({ParamIndex(0), ParamIndex(p.numel())}))
        for (int64_t i = 0; i < run.count; ++i)
          values[static_cast<size_t>(run.local.value + i)] = factor * gradient(run.global.value + i);
      ops::copy_from_host(g.device().compute(), g, values.data(), g.nbytes());
    }
  }

  struct Experts : nn::Module<Experts> {
    Experts(const DeviceMesh& mesh, int64_t wide) : ranks(mesh.size("expert_shard")) {
      Cutter(mesh, "expert")
          .cut([&](const Shape& s) { return param("up", s, normal(1)); }, {4, 3, 2 * wide}, 0, {1, 2});
    }
    nn::Var forward(const nn::Var& x) {
      return with_gradients(x, own_parameters(),
                            [this] { put_gradients(*this, 1.0f / static_cast<float>(ranks)); });
    }
    int ranks;
  };

  DeviceMesh mesh_, expert_mesh_;
  Experts experts_;
};

}  // namespace sherd::test
