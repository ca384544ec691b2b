// encode_text TOKENIZER: reads lines "BYTES SPECIAL", each followed by a text of so many bytes and a line break, and prints the
// text's tokens on a line, or "refused: REASON".
#include <cstdint>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/train/text/tokenizer.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto tokenizer = sherd::Tokenizer::load(argv[1]);
  size_t bytes = 0;
  bool special = false;
  while (std::cin >> bytes >> special) {
    std::string text(bytes, '\0');
    std::cin.ignore().read(text.data(), static_cast<std::streamsize>(bytes));
    try {
      std::cout << fmt::format("{}\n", fmt::join(tokenizer->encode(text, special), " "));
    } catch (const sherd::Error& e) {
      std::cout << "refused: " << e.what() << "\n";
    }
  }
}
