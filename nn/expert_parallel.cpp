#include <sherd/nn/expert_parallel.h>

namespace sherd::nn {

ExpertParallel ExpertParallel::of(const DeviceMesh& mesh) {
  return {mesh.size("expert"), mesh.coordinate("expert"), mesh.comm("expert"),
          mesh.flatten({"expert_shard", "expert"})->clone()};
}

}  // namespace sherd::nn
