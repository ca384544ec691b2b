// Any bytes as a manifest are accepted or refused with CorruptCheckpoint; nothing else happens.
#include <cstring>
#include <stdexcept>

#include <google/protobuf/stubs/logging.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/format/manifest.h>

namespace {

/// The input as a message whose prefix and checksums are right.
std::string with_prefix(std::string_view message) {
  std::string prefix = sherd::encode_manifest({}).substr(0, sherd::kManifestPrefix);
  const auto put = [&](size_t at, uint64_t value) { std::memcpy(prefix.data() + at, &value, sizeof value); };
  put(24, message.size());
  put(32, sherd::checksum(message.data(), std::ssize(message)));
  put(40, sherd::checksum(prefix.data(), 40));
  return prefix + std::string(message);
}

void decode(std::string_view bytes) {
  try {
    const sherd::Manifest manifest = sherd::decode_manifest(bytes);
    const std::string again = sherd::encode_manifest(manifest);
    if (sherd::encode_manifest(sherd::decode_manifest(again)) != again)
      throw std::logic_error("an accepted manifest is not written as it is read");
  } catch (const sherd::CorruptCheckpoint&) {
  }
}

void decode_part(std::string_view bytes) {
  try {
    const sherd::Manifest part = sherd::decode_part(bytes);
    const std::string again = sherd::encode_part(part);
    if (sherd::encode_part(sherd::decode_part(again)) != again)
      throw std::logic_error("an accepted part is not written as it is read");
  } catch (const sherd::CorruptCheckpoint&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  decode(bytes);
  decode(with_prefix(bytes));
  decode_part(bytes);
  return 0;
}
