#include <sherd/comm/core/detail/call_bytes.h>

#include <algorithm>
#include <array>

namespace sherd::comm {
namespace {

// An operation is sent as its index. Calls name operations by these literals.
constexpr std::array kOperations{"all_gather", "all_gather_v", "reduce_scatter", "all_reduce",
                                 "broadcast",  "all_to_all_v", "gather_v",       "scatter_v",
                                 "send",       "recv",         "barrier"};

// A corrupt count must not allocate gigabytes.
constexpr size_t kMostNumbers = size_t{1} << 24;

/// Fields in wire order: one list for both directions cannot get out of step. `Bytes`: a writer of a const
/// call, or a reader.
template <class Bytes, class SomeCall>
void plain_fields(Bytes& bytes, SomeCall& c) {
  bytes(c.sequence);
  bytes(c.dtype);
  bytes(c.elements);
  bytes(c.root);
  bytes(c.reduce);
  bytes(c.counts);
  bytes(c.send_counts);
  bytes(c.recv_counts);
}

}  // namespace

void ByteWriter::operator()(const std::string& text) {
  (*this)(text.size());
  bytes_.append(text);
}

void ByteWriter::operator()(const std::vector<int64_t>& numbers) {
  const bool equal =
      std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
  (*this)(numbers.size());
  (*this)(static_cast<char>(equal));
  const size_t stored = equal ? std::min<size_t>(numbers.size(), 1) : numbers.size();
  for (size_t i = 0; i < stored; ++i) (*this)(numbers[i]);
}

void ByteWriter::operator()(const Call& call) {
  (*this)(std::ranges::find(kOperations, std::string_view(call.op)) - kOperations.begin());
  plain_fields(*this, call);
  (*this)(std::string(call.purpose.text()));
}

void ByteReader::operator()(std::string& text) {
  size_t size = 0;
  (*this)(size);
  text = take(size);
}

void ByteReader::operator()(std::vector<int64_t>& numbers) {
  size_t count = 0;
  char equal = 0;
  (*this)(count);
  (*this)(equal);
  // Checked before the allocation. Numbers that are stored one by one must be in the rest; equal ones have no
  // such bound.
  good_ = good_ && count <= (equal ? kMostNumbers : rest_.size() / sizeof(int64_t));
  numbers.assign(good_ ? count : 0, 0);
  for (size_t i = 0; i < numbers.size(); ++i)
    if (equal && i > 0)
      numbers[i] = numbers[0];
    else
      (*this)(numbers[i]);
}

void ByteReader::operator()(Call& call) {
  std::ptrdiff_t op = 0;
  (*this)(op);
  // The literals outlive every call, so Call::op never points into received bytes.
  good_ = good_ && op >= 0 && op < std::ssize(kOperations);
  if (good_) call.op = kOperations[static_cast<size_t>(op)];
  plain_fields(*this, call);
  std::string purpose;
  (*this)(purpose);
  if (!purpose.empty()) call.purpose = Purpose(purpose);
}

std::string_view ByteReader::take(size_t bytes) {
  good_ = good_ && bytes <= rest_.size();
  if (!good_) return {};
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

std::string encode(const Call& call) {
  ByteWriter bytes;
  bytes(call);
  return bytes.take();
}

std::optional<Call> decode_call(std::string_view bytes) {
  ByteReader reader(bytes);
  Call call;
  reader(call);
  if (!reader.at_end()) return std::nullopt;
  return call;
}

}  // namespace sherd::comm
