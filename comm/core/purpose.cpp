#include <sherd/comm/core/purpose.h>

#include <fmt/format.h>

#include <utility>

#include <sherd/kernels/random/random.h>

namespace sherd {

Purpose::Purpose(std::string text, bool in_digest) {
  if (text.empty()) return;
  const uint64_t hash = hash64(0, text);
  what_ = std::make_shared<const What>(What{std::move(text), hash, in_digest, /*entry=*/false});
}

Purpose Purpose::entry(std::string_view function) {
  Purpose p;
  std::string text = fmt::format("{}()", function);
  const uint64_t hash = hash64(0, text);
  p.what_ = std::make_shared<const What>(What{std::move(text), hash, /*in_digest=*/false, /*entry=*/true});
  return p;
}

}  // namespace sherd
