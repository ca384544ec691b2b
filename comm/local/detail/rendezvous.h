// Rendezvous of a group's ranks: they meet, agree and leave together.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <sherd/comm/watch/watch.h>

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

  /// All outlive the rendezvous. `gone`: whether a world rank makes no more calls; called under the lock.
  Rendezvous(comm::Watch& watch, comm::WaitPoint& point, const std::vector<int>& world_ranks,
             std::function<bool(int world_rank)> gone)
      : watch_(watch),
        point_(point),
        world_ranks_(world_ranks),
        gone_(std::move(gone)),
        slots_(world_ranks.size()),
        came_(world_ranks.size()) {}

  /// agree() runs once per meeting, on the last rank to arrive, under the lock; it returns why the ranks
  /// cannot proceed, or "". describe(Slot) names the operation in messages.
  /// @throws CommError on disagreement or timeout or when a rank comes no more, PeerFailure after an abort.
  template <class Agree>
  void enter(int rank, Slot& slot, Agree agree) {
    std::unique_lock lock(point_.mutex);
    if (watch_.domain().aborted()) {
      lock.unlock();
      watch_.domain().raise(place(rank, slot));
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
        watch_.domain().fail(lock, -1, place(rank, slot), reason);
      }
      arrived_ = 0;
      inside_ = slots_.size();
      ++meeting_;
      point_.changed.notify_all();
      return;
    }
    Arrival arrival(*this, rank, slot);
    watch_.await(point_, lock, arrival);
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

  /// Returns the slots by rank. Complete for agree() and between enter() and the last sync().
  const std::vector<Slot*>& slots() const { return slots_; }
  /// When each rank came, by rank. Complete for agree().
  const std::vector<Clock::time_point>& came() const { return came_; }

 private:
  /// A rank that waits for the others.
  class Arrival final : public comm::PendingCall {
   public:
    Arrival(Rendezvous& at, int rank, const Slot& slot) : at_(at), rank_(rank), slot_(slot) {}
    bool complete() override { return at_.meeting_ != meeting_; }
    std::vector<int> missing(bool gone) override {
      std::vector<int> ranks;
      for (size_t r = 0; r < at_.slots_.size(); ++r)
        if (const int world = at_.world_ranks_[r]; !at_.slots_[r] && (!gone || at_.gone_(world)))
          ranks.push_back(world);
      return ranks;
    }
    Description describe() override {
      Description d{at_.world_ranks_[static_cast<size_t>(rank_)], at_.place(rank_, slot_), slot_.purpose, {}};
      for (size_t r = 0; r < at_.slots_.size(); ++r)
        if (at_.slots_[r]) d.waiting.push_back({at_.world_ranks_[r], at_.came_[r]});
      return d;
    }
    void withdraw() override { at_.withdraw(rank_); }

   private:
    Rendezvous& at_;
    const int rank_;
    const Slot& slot_;
    const uint64_t meeting_ = at_.meeting_;
  };

  void withdraw(int rank) {
    slots_[static_cast<size_t>(rank)] = nullptr;
    --arrived_;
  }
  std::string place(int rank, const Slot& slot) const {
    return describe(slot) + " on rank " + std::to_string(world_ranks_[static_cast<size_t>(rank)]);
  }

  comm::Watch& watch_;
  comm::WaitPoint& point_;
  const std::vector<int>& world_ranks_;
  const std::function<bool(int)> gone_;
  std::vector<Slot*> slots_;
  std::vector<Clock::time_point> came_;
  size_t arrived_ = 0, inside_ = 0;
  uint64_t meeting_ = 0, phase_ = 0;
};

}  // namespace sherd::local
