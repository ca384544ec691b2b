#include <sherd/comm/local/detail/presence.h>

#include <algorithm>
#include <utility>

namespace sherd::local {

Presence::Presence(comm::AbortDomain& domain, comm::WaitPoint& point, const std::vector<int>& world_ranks)
    : domain_(domain), point_(point), world_ranks_(world_ranks), queued_(world_ranks.size()) {}

Presence::Queued::Queued(std::shared_ptr<Presence> presence, int rank)
    : presence_(std::move(presence)), rank_(rank), epoch_(presence_->add(rank)) {}

Presence::Queued::~Queued() {
  if (ran_) presence_->remove(rank_, epoch_);
}

bool Presence::gone(int rank) {
  if (!domain_.has_left(world_ranks_[static_cast<size_t>(rank)])) return false;
  begin_anew();
  return queued_[static_cast<size_t>(rank)] == 0;
}

uint64_t Presence::add(int rank) {
  std::lock_guard lock(point_.mutex);
  begin_anew();
  ++queued_[static_cast<size_t>(rank)];
  return epoch_;
}

void Presence::remove(int rank, uint64_t epoch) {
  std::lock_guard lock(point_.mutex);
  begin_anew();
  if (epoch != epoch_) return;
  --queued_[static_cast<size_t>(rank)];
  if (gone(rank)) point_.changed.notify_all();
}

void Presence::begin_anew() {
  if (std::exchange(epoch_, domain_.epoch()) != epoch_) std::fill(queued_.begin(), queued_.end(), 0);
}

}  // namespace sherd::local
