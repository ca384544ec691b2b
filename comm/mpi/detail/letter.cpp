#include <sherd/comm/mpi/detail/letter.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <type_traits>

#include <sherd/kernels/device/error.h>

namespace sherd::mpi {
namespace {

// "sherd" and the version of what follows; all processes of a job run the same program on the same kind of
// host.
constexpr uint64_t kMark = 0x7368657264000002;

// Names of operations are compared and kept as literals.
constexpr std::array kOperations{"all_gather", "all_gather_v", "reduce_scatter", "all_reduce",
                                 "broadcast",  "all_to_all_v", "gather_v",       "scatter_v",
                                 "send",       "recv",         "barrier",        ""};

class Writer {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put(static_cast<int64_t>(text.size()));
    bytes_.append(text);
  }
  /// Equal numbers, as most collectives have them, go once.
  void put_all(const std::vector<int64_t>& numbers) {
    const bool equal =
        std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
    put(static_cast<int64_t>(numbers.size()));
    put(equal);
    if (numbers.empty()) return;
    for (size_t i = 0; i < (equal ? 1 : numbers.size()); ++i) put(numbers[i]);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  // Unaligned bytes are copied, never cast.
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string get_text() { return std::string(take(get_size())); }
  std::vector<int64_t> get_all() {
    const size_t count = get_size();
    const bool equal = get<bool>();
    // Checked before the allocation: a corrupt count must not allocate gigabytes.
    if (!equal && count > rest_.size() / sizeof(int64_t)) refuse();
    std::vector<int64_t> numbers(count);
    if (count == 0) return numbers;
    if (equal) {
      std::fill(numbers.begin(), numbers.end(), get<int64_t>());
    } else {
      for (int64_t& n : numbers) n = get<int64_t>();
    }
    return numbers;
  }
  [[noreturn]] static void refuse() {
    throw CommError(
        "MPI: received a control message of another version or program; run the same build on all hosts");
  }

 private:
  size_t get_size() {
    const auto size = get<int64_t>();
    if (size < 0 || size > (int64_t{1} << 31)) refuse();
    return static_cast<size_t>(size);
  }
  std::string_view take(size_t bytes) {
    if (bytes > rest_.size()) refuse();
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace

std::string encode(const Letter& l) {
  Writer w;
  w.put(kMark);
  w.put(l.kind);
  w.put(l.group);
  w.put(l.from);
  w.put(l.to);
  w.put(l.lane);
  w.put(l.sequence);
  // What follows depends on the kind: only calls carry a description, which peers compare with their own.
  w.put(l.tag);
  if (l.kind == Letter::Kind::left) w.put_text(l.last);
  if (l.kind != Letter::Kind::call) return w.take();
  if (l.lane == Lane::split) {
    w.put(l.color);
    w.put(l.key);
    return w.take();
  }
  const comm::Call& c = l.call;
  w.put_text(c.op);
  w.put(c.sequence);
  w.put(c.dtype);
  w.put(c.elements);
  w.put_all(c.counts);
  w.put(c.root);
  w.put_text(c.purpose.text());
  w.put(c.reduce);
  w.put_all(c.send_counts);
  w.put_all(c.recv_counts);
  w.put(l.waited_ns);
  return w.take();
}

Letter decode(const std::string& bytes) {
  Reader r(bytes);
  // The mark at the front holds the version of this format.
  if (r.get<uint64_t>() != kMark) Reader::refuse();
  Letter l;
  l.kind = r.get<Letter::Kind>();
  l.group = r.get<uint64_t>();
  l.from = r.get<int>();
  l.to = r.get<int>();
  l.lane = r.get<Lane>();
  l.sequence = r.get<int64_t>();
  l.tag = r.get<int>();
  if (l.kind == Letter::Kind::left) l.last = r.get_text();
  if (l.kind != Letter::Kind::call) return l;
  if (l.lane == Lane::split) {
    l.color = r.get<int>();
    l.key = r.get<int>();
    return l;
  }
  comm::Call& c = l.call;
  const std::string op = r.get_text();
  const auto known = std::find(kOperations.begin(), kOperations.end(), std::string_view(op));
  if (known == kOperations.end()) Reader::refuse();
  c.op = *known;
  c.sequence = r.get<int64_t>();
  c.dtype = r.get<DType>();
  c.elements = r.get<int64_t>();
  c.counts = r.get_all();
  c.root = r.get<int>();
  if (const std::string purpose = r.get_text(); !purpose.empty()) c.purpose = Purpose(purpose);
  c.reduce = r.get<ReduceOp>();
  c.send_counts = r.get_all();
  c.recv_counts = r.get_all();
  l.waited_ns = r.get<int64_t>();
  return l;
}

}  // namespace sherd::mpi
