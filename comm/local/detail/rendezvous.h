// Rendezvous of a group's ranks: they meet, agree and leave together.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <sherd/comm/watch/abort_domain.h>
#include <sherd/comm/watch/reports.h>

namespace sherd::local {

/// Reusable meeting of `world_ranks.size()` threads. Each enter()s with a slot, works with the slots of
/// all, and leaves with sync(). Slots of the others may be read from enter() to the last sync().
///
/// Only enter() can fail, and then no rank gets in: the last to arrive decides for all. Once inside, a rank
/// waits for its peers inside alone, so sync() needs no timeout and no abort, and a rank cannot leave while a
/// peer still reads its memory. What runs between enter() and sync() must not throw.
template <class Slot>
class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  /// All outlive the rendezvous. `gone`: whether a rank makes no more calls; called under the lock. `last`: a
  /// world rank's last call, for messages.
  Rendezvous(comm::AbortDomain& domain, comm::WaitPoint& point, const std::vector<int>& world_ranks,
             std::function<bool(int rank)> gone, std::function<std::string(int world_rank)> last)
      : domain_(domain),
        point_(point),
        world_ranks_(world_ranks),
        gone_(std::move(gone)),
        last_(std::move(last)),
        slots_(world_ranks.size()),
        came_(world_ranks.size()) {}

  /// agree() runs once per meeting, on the last rank to arrive, under the lock; it returns why the ranks
  /// cannot proceed, or "". describe(Slot) names the operation in messages.
  /// @throws CommError on disagreement or timeout or when a rank comes no more, PeerFailure after an abort.
  template <class Agree>
  void enter(int rank, Slot& slot, Agree agree) {
    std::unique_lock lock(point_.mutex);
    if (domain_.aborted()) {
      lock.unlock();
      domain_.raise(place(rank, slot));
    }
    slots_[static_cast<size_t>(rank)] = &slot;
    came_[static_cast<size_t>(rank)] = Clock::now();
    if (++arrived_ == slots_.size()) {
      std::string reason;
      try {
        reason = agree();
      } catch (const std::exception& e) {
        reason = place(rank, slot) + ": " + e.what();
      }
      if (!reason.empty()) {
        withdraw(rank);
        domain_.fail(lock, -1, place(rank, slot), reason);
      }
      arrived_ = 0;
      inside_ = slots_.size();
      ++meeting_;
      point_.changed.notify_all();
      return;
    }
    const auto before = meeting_;
    std::vector<int> gone;
    const auto somebody_is_gone = [&] {
      gone = missing_ranks([&](size_t r) { return gone_(static_cast<int>(r)); });
      return !gone.empty();
    };
    const auto notice = [&] {
      const std::vector<int> missing = missing_ranks([](size_t) { return true; });
      comm::notice_lone_call(slot.purpose, world_ranks_[static_cast<size_t>(rank)], place(rank, slot),
                             missing, waiting(), point_.timeout, comm::last_calls_clause(missing, last_));
    };
    switch (domain_.wait(
        point_, lock, [&] { return meeting_ != before || somebody_is_gone(); }, notice)) {
      case comm::Wait::ready: {
        if (meeting_ != before) return;
        const std::string where = place(rank, slot);
        const std::string cause = domain_.left_message(
            where, gone, comm::last_calls_clause(gone, last_) + comm::waiting_clause(waiting()));
        withdraw(rank);
        domain_.fail(lock, gone.front(), where, cause);
      }
      case comm::Wait::aborted:
        withdraw(rank);
        lock.unlock();
        domain_.raise(place(rank, slot));
      case comm::Wait::timed_out: {
        const std::vector<int> missing = missing_ranks([](size_t) { return true; });
        const std::string where = place(rank, slot);
        const std::string cause = domain_.timeout_message(
            point_, where, missing,
            comm::waiting_clause(waiting()) + comm::last_calls_clause(missing, last_));
        withdraw(rank);
        domain_.fail(lock, missing.front(), where, cause);
      }
    }
  }

  /// Returns when all ranks inside have called it equally often. After the `last` one the slots are invalid.
  void sync(bool last) noexcept {
    std::unique_lock lock(point_.mutex);
    if (--inside_ == 0) {
      if (last)
        std::fill(slots_.begin(), slots_.end(), nullptr);
      else
        inside_ = slots_.size();
      ++phase_;
      point_.changed.notify_all();
      return;
    }
    point_.changed.wait(lock, [&, before = phase_] { return phase_ != before; });
  }

  /// By rank. Complete for agree() and between enter() and the last sync().
  const std::vector<Slot*>& slots() const { return slots_; }
  /// When each rank came, by rank. Complete for agree().
  const std::vector<Clock::time_point>& came() const { return came_; }

 private:
  void withdraw(int rank) {
    slots_[static_cast<size_t>(rank)] = nullptr;
    --arrived_;
  }
  /// World ranks of those that have not come and of which `which` is true.
  template <class Which>
  std::vector<int> missing_ranks(Which which) const {
    std::vector<int> missing;
    for (size_t r = 0; r < slots_.size(); ++r)
      if (slots_[r] == nullptr && which(r)) missing.push_back(world_ranks_[r]);
    return missing;
  }
  std::vector<comm::Waiting> waiting() const {
    std::vector<comm::Waiting> ranks;
    for (size_t r = 0; r < slots_.size(); ++r)
      if (slots_[r]) ranks.push_back({world_ranks_[r], came_[r]});
    return ranks;
  }
  std::string place(int rank, const Slot& slot) const {
    return describe(slot) + " on rank " + std::to_string(world_ranks_[static_cast<size_t>(rank)]);
  }

  comm::AbortDomain& domain_;
  comm::WaitPoint& point_;
  const std::vector<int>& world_ranks_;
  const std::function<bool(int)> gone_;
  const std::function<std::string(int)> last_;
  std::vector<Slot*> slots_;
  std::vector<Clock::time_point> came_;
  size_t arrived_ = 0, inside_ = 0;
  uint64_t meeting_ = 0, phase_ = 0;
};

}  // namespace sherd::local
