#include "train_gpt/run/next_rows.h"

#include <sherd/nn/kernels/loss/loss.h>

namespace train_gpt {

NextRows next_rows(const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets,
                   const std::vector<int32_t>& starts, const std::vector<int32_t>& lengths, int64_t seq) {
  NextRows next{targets, std::vector<int32_t>(targets.size(), sherd::kIgnoredTarget)};
  const auto places = static_cast<size_t>(seq);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool last_of_row = (i + 1) % places == 0;
    const bool last = last_of_row || (i + 1) % places == static_cast<size_t>(lengths[i / places]) ||
                      (!starts.empty() && starts[i] != starts[i + 1]);
    // A token that is context is not among the targets. Behind an example that ends with it any token will do, because
    // nothing is learned there; the example's own last one does not depend on what follows in the row.
    if (targets[i] == sherd::kIgnoredTarget) next.tokens[i] = inputs[last ? i : i + 1];
    if (!last) next.targets[i] = targets[i + 1];
  }
  return next;
}

}  // namespace train_gpt
