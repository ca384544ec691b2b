#include <sherd/checkpoint/same_copies.h>

#include <sherd/checkpoint/detail/compare_copies.h>

namespace sherd {

void require_same_copies(Communicator& ranks, const std::vector<FileCopy>& mine) {
  Agreement agreement(ranks, "require_same_copies");
  compare_copies(agreement, mine);
}

}  // namespace sherd
