#include "comm/ranks.h"

namespace sherd::test {

void run_ranks(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body) {
  launch(ranks, options, body);
}

}  // namespace sherd::test
