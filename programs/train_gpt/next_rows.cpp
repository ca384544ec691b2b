#include "next_rows.h"

#include <sherd/nn/kernels/loss/loss.h>

namespace train_gpt {

NextRows next_rows(const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets,
                   const std::vector<int32_t>& starts, int64_t seq) {
  NextRows next{targets, std::vector<int32_t>(targets.size(), sherd::kIgnoredTarget)};
  const auto places = static_cast<size_t>(seq);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool last = (i + 1) % places == 0;
    // A token that is context is not among the targets. Behind a row that ends with it any token will do: nothing is
    // learned there.
    if (targets[i] == sherd::kIgnoredTarget) next.tokens[i] = inputs[last ? i : i + 1];
    if (!last && (starts.empty() || starts[i] == starts[i + 1])) next.targets[i] = targets[i + 1];
  }
  return next;
}

}  // namespace train_gpt
