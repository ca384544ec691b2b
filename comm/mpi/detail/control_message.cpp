#include <sherd/comm/mpi/detail/control_message.h>

#include <sherd/base/error.h>
#include <sherd/comm/core/detail/call_bytes.h>

namespace sherd::mpi {
namespace {

// "sherd" and the version of what follows.
constexpr uint64_t kMark = 0x7368657264000003;

/// `Bytes`: a writer of a const message, or a reader. Only calls carry a description, which peers compare with theirs.
template <class Bytes, class Message>
void fields(Bytes& bytes, Message& m) {
  bytes(m.kind);
  bytes(m.group);
  bytes(m.from);
  bytes(m.to);
  bytes(m.lane);
  bytes(m.sequence);
  bytes(m.tag);
  if (m.kind == ControlMessage::Kind::left) bytes(m.last);
  if (m.kind != ControlMessage::Kind::call) return;
  if (m.lane == Lane::split) {
    bytes(m.color);
    bytes(m.key);
  } else {
    bytes(m.call);
    bytes(m.waited_ns);
  }
}

}  // namespace

std::string encode(const ControlMessage& message) {
  comm::ByteWriter bytes;
  bytes(kMark);
  fields(bytes, message);
  return bytes.take();
}

ControlMessage decode(const std::string& bytes) {
  comm::ByteReader reader(bytes);
  uint64_t mark = 0;
  ControlMessage message;
  reader(mark);
  fields(reader, message);
  // Checked after reading: the reader returns zeros behind the end, so any bytes are safe to read.
  if (mark != kMark || !reader.at_end())
    throw CommError(
        "MPI: received a control message of another version or program; run the same build on all hosts");
  return message;
}

}  // namespace sherd::mpi
