#include <sherd/comm/core/purpose.h>

#include <utility>

#include <sherd/kernels/ops/random.h>

namespace sherd {

Purpose::Purpose(std::string text, bool in_digest) {
  if (text.empty()) return;
  const uint64_t hash = hash64(0, text);
  what_ = std::make_shared<const What>(What{std::move(text), hash, in_digest});
}

}  // namespace sherd
