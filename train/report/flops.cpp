#include <sherd/train/report/flops.h>

namespace sherd {

double training_flops(const TokenWork& work, int64_t seq) {
  return 6.0 * static_cast<double>(work.weights) +
         6.0 * static_cast<double>(seq + 1) * static_cast<double>(work.attention_width);
}

}  // namespace sherd
