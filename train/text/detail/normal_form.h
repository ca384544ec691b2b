// Unicode normalization forms (UAX 15), by utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace sherd {

enum class NormalForm { NFC, NFD, NFKC, NFKD };

/// Returns valid UTF-8 text in this form. Linear in the text, but for sorting within runs of combining marks.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace sherd
