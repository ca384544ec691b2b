#include <sherd/kernels/device/allocator.h>

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <functional>

#include <sherd/base/error.h>

namespace sherd {
namespace {

/// Kept beyond the share of the recent peak, so that small programs keep all they use.
constexpr int64_t kSlack = int64_t{1} << 20;
/// Requests after which a peak of live bytes begins to count as past.
constexpr int64_t kWindow = 4096;

/// A kept block may be this much larger than the request: shapes that vary a little share blocks.
int64_t largest_fit(int64_t size) { return size + size / 8; }

}  // namespace

Allocator::Allocator(std::string label, int64_t limit_bytes, std::unique_ptr<MemorySource> source)
    : label_(std::move(label)), source_(source ? std::move(source) : host_memory()), limit_(limit_bytes) {
  if (limit_bytes < 0) throw InvalidArgument(fmt::format("memory limit {} is negative", limit_bytes));
}

Allocator::~Allocator() {
  for (auto& [bytes, kept] : shelf_) give_back({kept.data, bytes}, *source_);
  for (Foreign& f : leaving_) give_back(f.block, *f.source);
}

std::shared_ptr<void> Allocator::gate(Gate f) {
  struct Door {
    Gate open;  // null: gone, and passed freely
    std::mutex mutex;
    std::condition_variable left;
    int inside = 0;
  };
  const auto door = std::make_shared<Door>();
  door->open = std::move(f);
  const Gate pass = [door]() -> std::shared_ptr<void> {
    Gate open;
    {
      std::lock_guard lock(door->mutex);
      if (!door->open) return nullptr;
      ++door->inside;
      open = door->open;
    }
    return {nullptr, [door, passed = open()](void*) mutable {
              passed = nullptr;
              std::lock_guard lock(door->mutex);
              --door->inside;
              door->left.notify_all();
            }};
  };
  {
    std::lock_guard lock(listeners_mutex_);
    gate_ = !gate_ ? pass : [before = std::move(gate_), pass]() -> std::shared_ptr<void> {
      auto first = before();
      return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(std::move(first),
                                                                                       pass());
    };
  }
  return {nullptr, [door](void*) {
            std::unique_lock lock(door->mutex);
            door->open = nullptr;
            door->left.wait(lock, [&] { return door->inside == 0; });
          }};
}

std::shared_ptr<void> Allocator::pass_gate() {
  Gate gate;
  {
    std::lock_guard lock(listeners_mutex_);
    gate = gate_;
  }
  return gate ? gate() : nullptr;
}

void Allocator::give_back(const Block& block, MemorySource& source) noexcept {
  const std::shared_ptr<void> passed = pass_gate();
  {
    std::lock_guard lock(listeners_mutex_);
    for (const OnReturn& f : listeners_) f(block.data, block.bytes);
  }
  source.release(block.data, block.bytes);
}

std::shared_ptr<void> Allocator::on_return(OnReturn f) {
  std::lock_guard lock(listeners_mutex_);
  const auto at = listeners_.insert(listeners_.end(), std::move(f));
  return {static_cast<void*>(&*at), [this, at](void*) {
            std::lock_guard removal(listeners_mutex_);
            listeners_.erase(at);
          }};
}

void Allocator::note_held(int64_t change) noexcept {
  const int64_t held = held_bytes() + change;
  held_.store(held, std::memory_order_relaxed);
  peak_held_.store(std::max(peak_held_bytes(), held), std::memory_order_relaxed);
}

int64_t Allocator::recent_peak(int64_t live) noexcept {
  if (++window_count_ == kWindow) {
    last_window_peak_ = std::exchange(window_peak_, 0);
    window_count_ = 0;
  }
  window_peak_ = std::max(window_peak_, live);
  return std::max(window_peak_, last_window_peak_);
}

Allocator::Block Allocator::take(Shelf::iterator at) {
  const Block block{at->second.data, at->first};
  by_age_.erase(at->second.released);
  shelf_.erase(at);
  kept_ -= block.bytes;
  return block;
}

Allocator::Block Allocator::reuse(int64_t size, bool fresh) {
  const auto first = shelf_.lower_bound(size);
  if (first == shelf_.end() || first->first > largest_fit(size)) return {};
  // Takes the last released block of this size, which caches may still hold.
  if (!fresh) return take(std::prev(shelf_.upper_bound(first->first)));
  const int64_t done = std::max(source_->done(), drained_);
  for (auto at = first; at != shelf_.end() && at->first <= largest_fit(size); ++at)
    if (at->second.until <= done) return take(at);
  return {};
}

void Allocator::give_back_idle(int64_t most, Lock& lock) {
  if (held_bytes() <= most || by_age_.empty()) return;
  const int64_t done = std::max(source_->done(), drained_);
  std::vector<Block> idle;
  int64_t bytes = 0;
  for (auto at = by_age_.begin(); at != by_age_.end() && held_bytes() - bytes > most;) {
    const auto block = (at++)->second;
    if (block->second.until > done) continue;
    idle.push_back(take(block));
    bytes += idle.back().bytes;
  }
  // A listener may wait for a thread that is inside allocate().
  returning_ += bytes;
  lock.unlock();
  for (const Block& block : idle) give_back(block, *source_);
  lock.lock();
  returning_ -= bytes;
  note_held(-bytes);
}

void Allocator::give_back_foreign(Lock& lock) {
  if (leaving_.empty()) return;
  const int64_t done = source_->done();
  const auto idle = std::partition(leaving_.begin(), leaving_.end(), [&](auto& f) { return f.until > done; });
  std::vector<Foreign> going(std::make_move_iterator(idle), std::make_move_iterator(leaving_.end()));
  leaving_.erase(idle, leaving_.end());
  int64_t bytes = 0;
  for (const Foreign& f : going) bytes += f.block.bytes;
  returning_ += bytes;
  lock.unlock();
  for (const Foreign& f : going) give_back(f.block, *f.source);
  going.clear();  // a source may end with its last block
  lock.lock();
  returning_ -= bytes;
  note_held(-bytes);
}

void Allocator::drain(Lock& lock) {
  // Operations of side streams may wait for peers for long. Blocks released before do not depend on them: the
  // releaser of memory that another stream uses has made compute() wait for that stream first (see Device).
  const int64_t released = source_->queued();
  lock.unlock();
  try {
    source_->drain();
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  drained_ = std::max(drained_, released);
}

void Allocator::shrink(int64_t most, bool may_wait, Lock& lock) {
  give_back_foreign(lock);
  give_back_idle(most, lock);
  if (held_bytes() <= most || (by_age_.empty() && leaving_.empty()) || !may_wait) return;
  drain(lock);
  give_back_foreign(lock);
  give_back_idle(most, lock);
}

Allocator::Block Allocator::grow(MemorySource& source, int64_t size, std::string_view name, bool fresh,
                                 Lock& lock) {
  const int64_t recent = recent_peak(live_ + size);
  shrink(recent + recent / 2 + kSlack - size, !fresh, lock);
  for (const int64_t most : {limit_, keep_within_})
    if (most > 0) shrink(most - size, !fresh, lock);
  lock.unlock();
  std::shared_ptr<void> passed = pass_gate();
  lock.lock();
  if (limit_ > 0) {
    const int64_t total = held_bytes() - (fresh ? kept_ + returning_ : 0) + size;
    if (total > limit_)
      throw OutOfMemory(fmt::format(
          "{}: allocating {} bytes for '{}' would bring the total to {} bytes, over the memory limit of "
          "{} bytes; shard more (a strategy that shards more, or more ranks), shrink the model or the batch, "
          "or "
          "raise the limit.\n{}",
          label_, size, name, total, limit_, format_locked()));
  }
  void* data = source.allocate(size);
  // Blocks kept for reuse may be what is missing.
  while (data == nullptr && !shelf_.empty()) {
    const int64_t before = held_bytes();
    passed = nullptr;  // what shrink() waits for may wait behind the gate
    shrink(before - size, !fresh, lock);
    if (held_bytes() >= before) break;
    lock.unlock();
    passed = pass_gate();
    lock.lock();
    data = source.allocate(size);
  }
  if (data == nullptr)
    throw OutOfMemory(fmt::format("{}: {} has no {} bytes left for '{}'.\n{}", label_, source.owner(), size,
                                  name, format_locked()));
  note_held(size);
  return {data, size};
}

void* Allocator::allocate(int64_t bytes, MemoryClass kind, std::string_view name, bool fresh) {
  if (bytes < 0)
    throw InvalidArgument(fmt::format("{}: allocation of {} bytes for '{}'", label_, bytes, name));
  const int64_t size = rounded(bytes);
  Lock lock(mutex_);
  Block block = reuse(size, fresh);
  if (block.data == nullptr) block = grow(*source_, size, name, fresh, lock);
  count(block, size, kind, name);
  return block.data;
}

void* Allocator::allocate_from(std::shared_ptr<MemorySource> source, int64_t bytes, MemoryClass kind,
                               std::string_view name) {
  if (bytes < 0)
    throw InvalidArgument(fmt::format("{}: allocation of {} bytes for '{}'", label_, bytes, name));
  const int64_t size = rounded(bytes);
  Lock lock(mutex_);
  const Block block = grow(*source, size, name, true, lock);
  foreign_.emplace(block.data, Foreign{block, std::move(source), 0});
  count(block, size, kind, name);
  return block.data;
}

void Allocator::note_peak() noexcept {
  peak_.store(live_, std::memory_order_relaxed);
  for (ClassBytes& c : classes_) c.at_peak = c.live;
}

void Allocator::count(const Block& block, int64_t size, MemoryClass kind, std::string_view name) {
  live_ += size;
  recent_peak(live_);
  auto it = names_.find(name);
  if (it == names_.end()) it = names_.emplace(std::string(name), Named{}).first;
  Entry& e = it->second[kind];
  e.bytes += size;
  e.peak = std::max(e.peak, e.bytes);
  e.peak_count = std::max(e.peak_count, ++e.count);
  ClassBytes& c = classes_[static_cast<size_t>(kind)];
  c.live += size;
  c.peak = std::max(c.peak, c.live);
  if (live_ > peak_bytes()) note_peak();
  used_.emplace(block.data, Used{block.bytes, size, kind, &e});
}

void Allocator::release(void* p, bool idle) noexcept {
  if (p == nullptr) return;
  std::lock_guard lock(mutex_);
  const auto at = used_.find(p);
  const Used used = at->second;
  used_.erase(at);
  live_ -= used.live_bytes;
  classes_[static_cast<size_t>(used.kind)].live -= used.live_bytes;
  used.entry->bytes -= used.live_bytes;
  --used.entry->count;
  if (auto other = foreign_.extract(p)) {
    other.mapped().until = idle ? 0 : source_->queued();
    leaving_.push_back(std::move(other.mapped()));
    return;
  }
  keep({p, used.block_bytes}, idle ? 0 : source_->queued());
}

void Allocator::keep(const Block& block, int64_t until) {
  const uint64_t now = ++releases_;
  by_age_.emplace(now, shelf_.emplace(block.bytes, Kept{block.data, until, now}));
  kept_ += block.bytes;
}

std::vector<int64_t> Allocator::blocks() const {
  std::lock_guard lock(mutex_);
  std::vector<int64_t> sizes;
  for (const auto& [data, used] : used_)
    if (!foreign_.contains(data)) sizes.push_back(used.block_bytes);
  for (const auto& [size, kept] : shelf_) sizes.push_back(size);
  return sizes;
}

void Allocator::reserve(std::vector<int64_t> sizes) {
  std::ranges::sort(sizes, std::greater());
  std::lock_guard lock(mutex_);
  for (const int64_t size : sizes) {
    if (limit_ > 0 && held_bytes() + size > limit_) break;
    void* const data = source_->allocate(size);
    if (data == nullptr) break;
    note_held(size);
    keep({data, size}, 0);
  }
  // Until the step has run they are not too many.
  window_peak_ = std::max(window_peak_, live_ + kept_);
}

void Allocator::keep_within(int64_t bytes) {
  std::lock_guard lock(mutex_);
  keep_within_ = bytes;
}

int64_t Allocator::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_;
}

int64_t Allocator::kept_bytes() const {
  std::lock_guard lock(mutex_);
  return kept_;
}

int64_t Allocator::live_bytes(std::string_view prefix) const {
  std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (auto it = names_.lower_bound(prefix); it != names_.end() && it->first.starts_with(prefix); ++it)
    for (auto& [kind, e] : it->second) sum += e.bytes;
  return sum;
}

int64_t Allocator::live_bytes(MemoryClass kind) const {
  std::lock_guard lock(mutex_);
  return classes_[static_cast<size_t>(kind)].live;
}

int64_t Allocator::peak_bytes(MemoryClass kind) const {
  std::lock_guard lock(mutex_);
  return classes_[static_cast<size_t>(kind)].peak;
}

int64_t Allocator::bytes_at_peak(MemoryClass kind) const {
  std::lock_guard lock(mutex_);
  return classes_[static_cast<size_t>(kind)].at_peak;
}

void Allocator::reset_peak() {
  std::lock_guard lock(mutex_);
  note_peak();
  peak_held_.store(held_bytes(), std::memory_order_relaxed);
  for (ClassBytes& c : classes_) c.peak = c.live;
  for (auto& [name, kinds] : names_)
    for (auto& [kind, e] : kinds) {
      e.peak = e.bytes;
      e.peak_count = e.count;
    }
}

std::vector<MemoryLine> Allocator::table_locked() const {
  std::vector<MemoryLine> lines;
  for (auto& [name, kinds] : names_)
    for (auto& [kind, e] : kinds) lines.push_back({name, kind, e.bytes, e.peak, e.peak_count});
  std::stable_sort(lines.begin(), lines.end(), [](auto& a, auto& b) { return a.peak_bytes > b.peak_bytes; });
  return lines;
}

std::vector<MemoryLine> Allocator::table() const {
  std::lock_guard lock(mutex_);
  return table_locked();
}

std::string Allocator::format_locked() const {
  std::string out = fmt::format("{:<32} {:>14} {:>14}\n", "memory of " + label_, "bytes", "peak bytes");
  for (auto& l : table_locked()) out += fmt::format("{:<32} {:>14} {:>14}\n", l.name, l.bytes, l.peak_bytes);
  return out + fmt::format("{:<32} {:>14} {:>14}\n{:<32} {:>14} {:>14}", "total", live_, peak_bytes(),
                           "held, with what is kept for reuse", held_bytes(), peak_held_bytes());
}

std::string Allocator::format_table() const {
  std::lock_guard lock(mutex_);
  return format_locked();
}

}  // namespace sherd
