// Any bytes as a pattern of names, up to the first line break, and as the names behind it, are taken or refused.
#include <sherd/base/error.h>
#include <sherd/fsdp/name_pattern.h>

#include "messages.h"

using namespace sherd;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string pattern(text.substr(0, text.find('\n')));
  try {
    const NamePattern compiled(pattern), others("!" + pattern);
    while (text.find('\n') != text.npos) {
      text.remove_prefix(text.find('\n') + 1);
      const std::string_view name = text.substr(0, text.find('\n'));
      if (!pattern.starts_with('!') && compiled.matches(name) == others.matches(name))
        throw std::logic_error("a name is of a pattern and of its complement");
    }
  } catch (const InvalidArgument& e) {
    require_printable(e.what());
    if (std::string_view(e.what()).size() > 2000) throw std::logic_error("a refusal repeats a long pattern");
  }
  return 0;
}
