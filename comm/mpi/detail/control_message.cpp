#include <sherd/comm/mpi/detail/control_message.h>

#include <sherd/comm/core/detail/call_bytes.h>
#include <sherd/kernels/device/error.h>

namespace sherd::mpi {
namespace {

// "sherd" and the version of what follows.
constexpr uint64_t kMark = 0x7368657264000003;

}  // namespace

std::string encode(const ControlMessage& m) {
  comm::ByteWriter w;
  w.put(kMark);
  w.put(m.kind);
  w.put(m.group);
  w.put(m.from);
  w.put(m.to);
  w.put(m.lane);
  w.put(m.sequence);
  w.put(m.tag);
  // What follows depends on the kind: only calls carry a description, which peers compare with their own.
  if (m.kind == ControlMessage::Kind::left) w.put_text(m.last);
  if (m.kind != ControlMessage::Kind::call) return w.take();
  if (m.lane == Lane::split) {
    w.put(m.color);
    w.put(m.key);
  } else {
    w.put_call(m.call);
    w.put(m.waited_ns);
  }
  return w.take();
}

ControlMessage decode(const std::string& bytes) {
  comm::ByteReader r(bytes);
  ControlMessage m;
  const bool marked = r.get<uint64_t>() == kMark;
  m.kind = r.get<ControlMessage::Kind>();
  m.group = r.get<uint64_t>();
  m.from = r.get<int>();
  m.to = r.get<int>();
  m.lane = r.get<Lane>();
  m.sequence = r.get<int64_t>();
  m.tag = r.get<int>();
  const bool is_call = m.kind == ControlMessage::Kind::call;
  if (m.kind == ControlMessage::Kind::left) m.last = r.get_text();
  if (is_call && m.lane == Lane::split) {
    m.color = r.get<int>();
    m.key = r.get<int>();
  } else if (is_call) {
    m.call = r.get_call();
    m.waited_ns = r.get<int64_t>();
  }
  if (!marked || !r.at_end())
    throw CommError(
        "MPI: received a control message of another version or program; run the same build on all hosts");
  return m;
}

}  // namespace sherd::mpi
