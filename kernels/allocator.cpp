#include <sherd/kernels/allocator.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include <sherd/kernels/error.h>

namespace sherd {

namespace {

class HostMemory final : public MemorySource {
 public:
  void* allocate(int64_t bytes) override { return std::aligned_alloc(128, static_cast<size_t>(bytes)); }
  void release(void* p) noexcept override { std::free(p); }
  std::string owner() const override { return "the system"; }
};

}  // namespace

Allocator::Allocator(std::string label, int64_t limit_bytes, std::unique_ptr<MemorySource> source)
    : label_(std::move(label)),
      source_(source ? std::move(source) : std::make_unique<HostMemory>()),
      limit_(limit_bytes) {
  if (limit_bytes < 0) throw InvalidArgument(fmt::format("memory limit {} is negative", limit_bytes));
}

Allocator::~Allocator() {
  for (auto& [size, blocks] : free_)
    for (void* p : blocks) give_back(p, size);
}

void Allocator::give_back(void* block, int64_t size) noexcept {
  {
    std::lock_guard lock(listeners_mutex_);
    for (const OnReturn& f : listeners_) f(block, size);
  }
  source_->release(block);
}

std::shared_ptr<void> Allocator::on_return(OnReturn f) {
  std::lock_guard lock(listeners_mutex_);
  const auto at = listeners_.insert(listeners_.end(), std::move(f));
  return {static_cast<void*>(&*at), [this, at](void*) {
            std::lock_guard removal(listeners_mutex_);
            listeners_.erase(at);
          }};
}

void* Allocator::allocate(int64_t bytes, std::string_view name, bool fresh) {
  if (bytes < 0)
    throw InvalidArgument(fmt::format("{}: allocation of {} bytes for '{}'", label_, bytes, name));
  const int64_t size = rounded(bytes);
  std::unique_lock lock(mutex_);
  if (limit_ > 0 && live_ + size > limit_) {
    throw OutOfMemory(fmt::format(
        "{}: allocating {} bytes for '{}' would bring the total to {} bytes, over the memory limit of "
        "{} bytes; shard more (a higher --strategy or more ranks), shrink the model or the batch, or "
        "raise the limit.\n{}",
        label_, size, name, live_ + size, limit_, format_locked()));
  }
  void* p = nullptr;
  if (auto it = free_.find(size); !fresh && it != free_.end() && !it->second.empty()) {
    p = it->second.back();
    it->second.pop_back();
  } else {
    p = from_source(size, fresh, lock);
    if (p == nullptr)
      throw OutOfMemory(fmt::format("{}: {} has no {} bytes left for '{}'.\n{}", label_, source_->owner(),
                                    size, name, format_locked()));
  }
  live_ += size;
  peak_.store(std::max(peak_bytes(), live_), std::memory_order_relaxed);
  auto it = names_.find(name);
  if (it == names_.end()) it = names_.emplace(std::string(name), Entry{}).first;
  Entry& e = it->second;
  e.bytes += size;
  e.peak = std::max(e.peak, e.bytes);
  e.peak_count = std::max(e.peak_count, ++e.count);
  return p;
}

void* Allocator::from_source(int64_t size, bool fresh, std::unique_lock<std::mutex>& lock) {
  void* p = source_->allocate(size);
  if (p != nullptr || fresh) return p;
  // Blocks kept for reuse may be what is missing; queued work may still use them.
  std::map<int64_t, std::vector<void*>> unused;
  unused.swap(free_);
  lock.unlock();
  try {
    source_->drain();
  } catch (...) {  // the stream has failed; the blocks are still ours
    lock.lock();
    for (auto& [bytes, blocks] : unused)
      free_[bytes].insert(free_[bytes].end(), blocks.begin(), blocks.end());
    throw;
  }
  for (auto& [bytes, blocks] : unused)
    for (void* block : blocks) give_back(block, bytes);
  lock.lock();
  return unused.empty() ? nullptr : source_->allocate(size);
}

void Allocator::release(void* p, int64_t bytes, std::string_view name) noexcept {
  if (p == nullptr) return;
  const int64_t size = rounded(bytes);
  std::lock_guard lock(mutex_);
  live_ -= size;
  if (auto it = names_.find(name); it != names_.end()) {
    it->second.bytes -= size;
    --it->second.count;
  }
  free_[size].push_back(p);
}

int64_t Allocator::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_;
}

int64_t Allocator::live_bytes(std::string_view prefix) const {
  std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (auto it = names_.lower_bound(prefix); it != names_.end() && it->first.starts_with(prefix); ++it)
    sum += it->second.bytes;
  return sum;
}

void Allocator::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_.store(live_, std::memory_order_relaxed);
  for (auto& [name, e] : names_) {
    e.peak = e.bytes;
    e.peak_count = e.count;
  }
}

std::vector<MemoryLine> Allocator::table_locked() const {
  std::vector<MemoryLine> lines;
  for (auto& [name, e] : names_) lines.push_back({name, e.bytes, e.peak, e.peak_count});
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
  return out + fmt::format("{:<32} {:>14} {:>14}", "total", live_, peak_bytes());
}

std::string Allocator::format_table() const {
  std::lock_guard lock(mutex_);
  return format_locked();
}

}  // namespace sherd
