#include <sherd/nn/expert_parallel.h>

namespace sherd::nn {

ExpertParallel ExpertParallel::of(const DeviceMesh& mesh) {
  mesh.comm("expert")->connect_pairs();  // a pair may have no rows to exchange before a late step
  return {mesh.size("expert"), mesh.coordinate("expert"), mesh.comm("expert"),
          mesh.flatten({"expert_shard", "expert"})->clone()};
}

}  // namespace sherd::nn
