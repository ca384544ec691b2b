// Any bytes as a tokenizer.json are accepted or refused with an IoError that can be printed; what is accepted decodes, and encodes or says why not.
#include <numeric>

#include <sherd/base/error.h>
#include <sherd/train/text/tokenizer.h>

#include "messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = sherd::Tokenizer::parse(bytes, "tokenizer.json");
    std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(tokenizer->size(), 512)) + 1);
    std::iota(tokens.begin(), tokens.end(), 0);
    const std::string text = tokenizer->decode(tokens);
    // Texts of tokens are bounded by the file; unknown tokens and bytes of byte-level ones are three bytes each.
    if (text.size() > 3 * (4 * size + (size_t{64} << 10) + tokens.size()))
      throw std::logic_error("a tokenizer multiplies its file");
    tokenizer->find("a");
    try {
      (void)tokenizer->encode("a b  \u00e9\n12 'S a\u0301\u0323 </s>");
    } catch (const sherd::NotSupported& e) {
      require_printable(e.what());
    } catch (const sherd::InvalidArgument& e) {
      require_printable(e.what());
    }
  } catch (const sherd::IoError& e) {
    require_printable(e.what());
  }
  return 0;
}
