#include <sherd/checkpoint/detail/agreement.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>

#include <fmt/format.h>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr int64_t kTextBytes = 4096;
// Ranks wait here for others that read or write files. A slow disk is not a failed peer; failed peers abort
// the group.
constexpr std::chrono::hours kSlowestFiles{12};

// Types that cross ranks, by number; CommErrors do not: the group is gone then.
enum Cause : int64_t { kError, kInvalid, kShape, kNotSupported, kNotCompiled, kMemory, kIo, kCorrupt };

template <class T>
bool is(const std::exception& e) {
  return dynamic_cast<const T*>(&e) != nullptr;
}

Cause cause_of(const std::exception& e) {
  if (is<InvalidArgument>(e)) return kInvalid;
  if (is<ShapeMismatch>(e)) return kShape;
  if (is<NotSupported>(e)) return kNotSupported;
  if (is<NotCompiled>(e)) return kNotCompiled;
  if (is<OutOfMemory>(e)) return kMemory;
  if (is<IoError>(e)) return kIo;
  if (is<CorruptCheckpoint>(e)) return kCorrupt;
  return kError;
}

[[noreturn]] void raise(char kind, const std::string& text) {
  switch (kind - '0') {
    case kInvalid:
      throw InvalidArgument(text);
    case kShape:
      throw ShapeMismatch(text);
    case kNotSupported:
      throw NotSupported(text);
    case kNotCompiled:
      throw NotCompiled(text);
    case kMemory:
      throw OutOfMemory(text);
    case kIo:
      throw IoError(text);
    case kCorrupt:
      throw CorruptCheckpoint(text);
    default:
      throw Error(text);
  }
}

}  // namespace

Agreement::Agreement(Communicator& ranks, std::string_view function, int64_t report_words) {
  {
    const Serving entry(ranks, Purpose::entry(function));
    comm_ = ranks.side_channel(kSlowestFiles);
  }
  comm_->serve(Purpose("a checkpoint"));
  Device& device = comm_->device();
  const auto words = [&](int64_t n, DType t) {
    return Tensor::empty(device, {n}, t, MemoryClass::message, "checkpoint messages");
  };
  word_ = words(1, DType::i64);
  compared_ = words(2 * int64_t{size()}, DType::i64);
  text_ = words(kTextBytes, DType::u8);
  send_ = words(report_words, DType::i64);
  receive_ = words(rank() == 0 ? report_words : 0, DType::i64);
  stream_ = device.make_stream("checkpoint");
  follow_compute(*stream_);
}

int64_t Agreement::reduce(int64_t value, ReduceOp op) {
  ops::copy_from_host(*stream_, word_, &value, sizeof value);
  comm_->all_reduce(*stream_, word_, op);
  ops::copy_to_host(*stream_, &value, word_);
  return value;
}

int64_t Agreement::min(int64_t value) { return reduce(value, ReduceOp::min); }
int64_t Agreement::sum(int64_t value) { return reduce(value, ReduceOp::sum); }

bool Agreement::all_equal(uint64_t value) {
  return compare_values(*comm_, *stream_, {&value, 1}, compared_).front().equal();
}

void Agreement::require_equal(int64_t value, const std::string& otherwise, std::string_view function) {
  const Serving entry(*comm_, function.empty() ? comm_->serves() : Purpose::entry(function));
  sherd::require_equal(*comm_, *stream_, static_cast<uint64_t>(value), otherwise, compared_, ValueIs::count);
}

std::string Agreement::send_text(const std::string& text, int root) {
  auto left = static_cast<int64_t>(text.size());
  ops::copy_from_host(*stream_, word_, &left, sizeof left);
  comm_->broadcast(*stream_, word_, root);
  ops::copy_to_host(*stream_, &left, word_);
  std::string received(static_cast<size_t>(left), '\0');
  for (int64_t at = 0; at < left; at += kTextBytes) {
    const Tensor piece = text_.flat(0, std::min(kTextBytes, left - at));
    if (rank() == root) ops::copy_from_host(*stream_, piece, text.data() + at, piece.nbytes());
    comm_->broadcast(*stream_, piece, root);
    ops::copy_to_host(*stream_, received.data() + at, piece);
  }
  return received;
}

std::string Agreement::broadcast(const std::string& text) { return send_text(text, 0); }

std::vector<std::string> Agreement::broadcast(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += fmt::format("{}:{}", text.size(), text);
  all = broadcast(all);
  std::vector<std::string> received;
  for (size_t at = 0; at < all.size(); at += received.back().size()) {
    const size_t colon = all.find(':', at);
    const auto size = static_cast<size_t>(std::stoll(all.substr(at, colon - at)));
    received.push_back(all.substr(colon + 1, size));
    at = colon + 1;
  }
  return received;
}

std::vector<std::string> Agreement::exchange(const std::string& mine) {
  std::vector<std::string> all;
  for (int r = 0; r < size(); ++r) all.push_back(send_text(mine, r));
  return all;
}

void Agreement::run_collectively(const std::function<void()>& work, Names names) {
  std::exception_ptr mine;
  std::string text;
  try {
    work();
  } catch (const CommError&) {
    throw;  // the group is aborted: all ranks have the failure
  } catch (const std::exception& e) {
    mine = std::current_exception();
    text = static_cast<char>('0' + cause_of(e)) + std::string(e.what());
  }
  const auto first = static_cast<int>(min(mine ? rank() : size()));
  if (first == size()) return;
  const bool named = names == Names::failing_rank && sum(mine ? 1 : 0) < size();
  if (named && mine) text.insert(1, fmt::format("rank {}: ", comm_->world_rank()));
  const std::string theirs = send_text(text, first);
  if (mine && theirs == text && !named) std::rethrow_exception(mine);  // it may know more than its text
  raise(theirs.front(), theirs.substr(1));
}

std::vector<int64_t> Agreement::gather(const std::vector<int64_t>& mine, const std::vector<int64_t>& counts) {
  const auto n = static_cast<int64_t>(mine.size());
  const Tensor from = send_.flat(0, n);
  ops::copy_from_host(*stream_, from, mine.data(), from.nbytes());
  std::vector<int64_t> all;
  Tensor to;
  if (rank() == 0) {
    all.resize(static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
    to = receive_.flat(0, static_cast<int64_t>(all.size()));
  }
  comm_->gather_v(*stream_, to, counts, from, 0);
  stream_->synchronize();
  if (rank() == 0) ops::copy_to_host(*stream_, all.data(), to);
  return all;
}

std::vector<std::string> gather_bytes(Communicator& ranks, const std::string& mine) {
  Device& device = ranks.device();
  Stream& stream = device.compute();
  const auto memory = [&](int64_t n, DType t) {
    return Tensor::empty(device, {n}, t, MemoryClass::message, "checkpoint messages");
  };
  std::vector<int64_t> counts(static_cast<size_t>(ranks.size()));
  const auto size = static_cast<int64_t>(mine.size());
  const Tensor own_size = memory(1, DType::i64), sizes = memory(ranks.size(), DType::i64);
  ops::copy_from_host(stream, own_size, &size, sizeof size);
  ranks.all_gather(stream, sizes, own_size);
  ops::copy_to_host(stream, counts.data(), sizes);

  const Tensor send = memory(size, DType::u8);
  ops::copy_from_host(stream, send, mine.data(), size);
  const bool root = ranks.rank() == 0;
  const Tensor all =
      root ? memory(std::accumulate(counts.begin(), counts.end(), int64_t{0}), DType::u8) : Tensor();
  ranks.gather_v(stream, all, counts, send, 0);
  stream.synchronize();
  std::vector<std::string> received;
  if (!root) return received;
  int64_t at = 0;
  for (const int64_t n : counts) {
    received.emplace_back(static_cast<size_t>(n), '\0');
    ops::copy_to_host(stream, received.back().data(), all.flat(at, at + n));
    at += n;
  }
  return received;
}

}  // namespace sherd
