// Expert-parallel ranks of a model.
#pragma once

#include <cstdint>
#include <memory>

#include <sherd/comm/core/communicator.h>
#include <sherd/dtensor/mesh.h>

namespace sherd::nn {

/// Ranks among which one copy of the experts is distributed: rank `index` of `parts` holds the experts [index
/// * experts / parts, (index + 1) * experts / parts). By default one part, which sends nothing.
struct ExpertParallel {
  int parts = 1;
  int index = 0;
  std::shared_ptr<Communicator> comm = nullptr;  // by index; may be null in one part
  /// Every rank whose rows the balancing loss and the selection bias count; unused otherwise. Null: causal_model() takes
  /// those of the mesh with which fully_shard() wraps it.
  std::shared_ptr<Communicator> all = nullptr;

  /// Returns the ranks of mesh dimension "expert", counting the rows of the whole mesh. Collective.
  static ExpertParallel of(const DeviceMesh& mesh);
  int64_t share(int64_t experts) const { return experts / parts; }
};

}  // namespace sherd::nn
