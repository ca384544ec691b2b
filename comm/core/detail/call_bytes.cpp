#include <sherd/comm/core/detail/call_bytes.h>

#include <array>

namespace sherd::comm {
namespace {

// An operation is sent as its index. Calls name operations by these literals.
constexpr std::array kOperations{"all_gather", "all_gather_v", "reduce_scatter", "all_reduce",
                                 "broadcast",  "all_to_all_v", "gather_v",       "scatter_v",
                                 "send",       "recv",         "barrier"};

// A corrupt count must not allocate gigabytes.
constexpr size_t kMostNumbers = size_t{1} << 24;

bool equal(const std::vector<int64_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
}

}  // namespace

void ByteWriter::put_text(std::string_view text) {
  put(static_cast<int64_t>(text.size()));
  bytes_.append(text);
}

void ByteWriter::put_all(const std::vector<int64_t>& numbers) {
  put(static_cast<int64_t>(numbers.size()));
  put(static_cast<uint8_t>(equal(numbers)));
  const size_t stored = equal(numbers) ? std::min<size_t>(numbers.size(), 1) : numbers.size();
  for (size_t i = 0; i < stored; ++i) put(numbers[i]);
}

void ByteWriter::put_call(const Call& c) {
  const auto op = std::ranges::find(kOperations, std::string_view(c.op));
  put(static_cast<int64_t>(op - kOperations.begin()));
  put(c.sequence);
  put(static_cast<int64_t>(c.dtype));
  put(c.elements);
  put(static_cast<int64_t>(c.root));
  put(static_cast<int64_t>(c.reduce));
  put_all(c.counts);
  put_all(c.send_counts);
  put_all(c.recv_counts);
  put_text(c.purpose.text());
}

std::vector<int64_t> ByteReader::get_all() {
  const size_t count = get_size();
  const bool same = get<uint8_t>() != 0;
  // Checked before the allocation.
  good_ = good_ && (same ? count <= kMostNumbers : count <= rest_.size() / sizeof(int64_t));
  if (!good_ || count == 0) return {};
  std::vector<int64_t> numbers(count, get<int64_t>());
  if (!same)
    for (size_t i = 1; i < count; ++i) numbers[i] = get<int64_t>();
  return numbers;
}

Call ByteReader::get_call() {
  Call c;
  const auto op = get<int64_t>();
  good_ = good_ && op >= 0 && op < std::ssize(kOperations);
  if (good_) c.op = kOperations[static_cast<size_t>(op)];
  c.sequence = get<int64_t>();
  c.dtype = static_cast<DType>(get<int64_t>());
  c.elements = get<int64_t>();
  c.root = static_cast<int>(get<int64_t>());
  c.reduce = static_cast<ReduceOp>(get<int64_t>());
  c.counts = get_all();
  c.send_counts = get_all();
  c.recv_counts = get_all();
  if (const std::string purpose = get_text(); !purpose.empty()) c.purpose = Purpose(purpose);
  return c;
}

size_t ByteReader::get_size() {
  const auto size = get<int64_t>();
  good_ = good_ && size >= 0;
  return good_ ? static_cast<size_t>(size) : 0;
}

std::string_view ByteReader::take(size_t bytes) {
  good_ = good_ && bytes <= rest_.size();
  if (!good_) return {};
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

std::string encode(const Call& call) {
  ByteWriter w;
  w.put_call(call);
  return w.take();
}

std::optional<Call> decode_call(std::string_view bytes) {
  ByteReader r(bytes);
  Call call = r.get_call();
  if (!r.at_end()) return std::nullopt;
  return call;
}

}  // namespace sherd::comm
