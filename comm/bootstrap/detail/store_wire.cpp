#include <sherd/comm/bootstrap/detail/store_wire.h>

#include <string_view>

namespace sherd::store_wire {
namespace {

constexpr std::string_view kMagic = "sherd store 3\n";

void put(std::string& to, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(v >> (8 * i)));
}

std::string framed(const std::string& body) {
  std::string frame;
  put(frame, body.size(), kLengthBytes);
  return frame + body;
}

/// Reads from the front; once something is missing, all that follows is zero and `good` is false.
class Source {
 public:
  explicit Source(std::string_view s) : rest_(s) {}
  uint64_t number(int bytes) {
    if (rest_.size() < static_cast<size_t>(bytes)) good = false;
    if (!good) return 0;
    uint64_t v = 0;
    for (int i = 0; i < bytes; ++i) v |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
    rest_.remove_prefix(static_cast<size_t>(bytes));
    return v;
  }
  std::string text(uint64_t bytes) {
    if (rest_.size() < bytes) good = false;
    if (!good) return {};
    std::string s(rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
    return s;
  }
  std::string rest() { return text(rest_.size()); }
  bool at_end() const { return good && rest_.empty(); }

  bool good = true;

 private:
  std::string_view rest_;
};

// An absent proof is allowed: jobs without a secret have none.
bool is_proof(const std::string& text) { return text.empty() || text.size() == kProofBytes; }

}  // namespace

std::string encode(const Opening& o) { return framed(std::string(kMagic) + o.nonce); }

// Numbers are little-endian with fixed widths; the last text of a frame needs no length, since the frame has
// one.
std::string encode(const Hello& h) {
  std::string body;
  put(body, static_cast<uint32_t>(h.rank), 4);
  put(body, static_cast<uint32_t>(h.size), 4);
  put(body, h.proof.size(), 1);
  return framed(body + h.proof + h.job);
}

std::string encode(const Welcome& w) {
  std::string body;
  put(body, static_cast<uint8_t>(w.verdict), 1);
  put(body, w.proof.size(), 1);
  return framed(body + w.proof + w.reason);
}

std::string encode(const StoreRequest& r) {
  std::string body;
  put(body, static_cast<uint8_t>(r.op), 1);
  put(body, static_cast<uint64_t>(r.number), 8);
  put(body, r.key.size(), 4);
  return framed(body + r.key + r.value);
}

std::string encode(const StoreReply& r) {
  std::string body;
  put(body, static_cast<uint8_t>(r.status), 1);
  put(body, static_cast<uint64_t>(r.number), 8);
  put(body, r.values.size(), 4);
  for (const std::string& v : r.values) {
    put(body, v.size(), 4);
    body += v;
  }
  return framed(body);
}

std::optional<Opening> decode_opening(std::string_view body) {
  Source in(body);
  if (in.text(kMagic.size()) != kMagic) return std::nullopt;
  Opening o{in.text(kNonceBytes)};
  if (!in.at_end()) return std::nullopt;
  return o;
}

std::optional<Hello> decode_hello(std::string_view body) {
  Source in(body);
  Hello h;
  h.rank = static_cast<int>(in.number(4));
  h.size = static_cast<int>(in.number(4));
  h.proof = in.text(in.number(1));
  h.job = in.rest();
  if (!in.good || !is_proof(h.proof) || h.job.size() > kMaxJob) return std::nullopt;
  return h;
}

std::optional<Welcome> decode_welcome(std::string_view body) {
  Source in(body);
  const uint64_t verdict = in.number(1);
  if (verdict > static_cast<uint64_t>(Welcome::Verdict::secret)) return std::nullopt;
  Welcome w{static_cast<Welcome::Verdict>(verdict)};
  w.proof = in.text(in.number(1));
  w.reason = in.rest();
  if (!in.good || !is_proof(w.proof) || w.reason.size() > kMaxReason) return std::nullopt;
  return w;
}

std::optional<StoreRequest> decode_request(std::string_view body) {
  Source in(body);
  const uint64_t op = in.number(1);
  if (op > static_cast<uint64_t>(StoreRequest::Op::bye)) return std::nullopt;
  StoreRequest r{static_cast<StoreRequest::Op>(op)};
  r.number = static_cast<int64_t>(in.number(8));
  r.key = in.text(in.number(4));
  r.value = in.rest();
  if (!in.good) return std::nullopt;
  return r;
}

std::optional<StoreReply> decode_reply(std::string_view body) {
  Source in(body);
  const uint64_t status = in.number(1);
  if (status > static_cast<uint64_t>(StoreReply::Status::refused)) return std::nullopt;
  StoreReply r{static_cast<StoreReply::Status>(status)};
  r.number = static_cast<int64_t>(in.number(8));
  // No reserve(): a malformed count must not allocate memory.
  for (uint64_t left = in.number(4); left > 0 && in.good; --left) r.values.push_back(in.text(in.number(4)));
  if (!in.at_end()) return std::nullopt;
  return r;
}

std::optional<std::string> take_frame(std::string& buffer, size_t most, bool& too_long) {
  if (buffer.size() < kLengthBytes) return std::nullopt;
  const uint64_t length = Source(buffer).number(kLengthBytes);
  too_long = length > most;
  if (too_long || buffer.size() < kLengthBytes + length) return std::nullopt;
  std::string body = buffer.substr(kLengthBytes, length);
  buffer.erase(0, kLengthBytes + length);
  return body;
}

std::string printable(std::string_view text, size_t most) {
  std::string shown(text.substr(0, most));
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return shown;
}

}  // namespace sherd::store_wire
