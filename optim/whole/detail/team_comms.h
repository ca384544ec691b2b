// Communicators of a team. Private to optim/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/fsdp/parameter.h>
#include <sherd/optim/whole/plan.h>

namespace sherd {

struct TeamComms {
  /// Over the team; null where it is one rank. Separate ones, so that messages to the owners, results and
  /// Gram matrices overlap.
  std::shared_ptr<Communicator> team, in, out, gram;
  /// Over the tensor-parallel ranks; null where no matrix is cut.
  std::shared_ptr<Communicator> tensor;
  /// Over one rank of each cell; null unless requested.
  std::shared_ptr<Communicator> cells;
  /// Together over all ranks that have this plan, other replicas and tensor-parallel ranks included.
  std::vector<std::shared_ptr<Communicator>> planning;
  int rank = 0;  // in the team

  /// Collective.
  /// @param params of groups with equal mesh and axes; `name` of the optimizer.
  static TeamComms make(const std::vector<Parameter>& params, const MatrixPlan& plan, const std::string& name,
                        bool with_cells);
};

}  // namespace sherd
