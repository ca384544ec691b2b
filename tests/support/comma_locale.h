// A locale with a decimal comma, for the lifetime of an object.
#pragma once

#include <clocale>
#include <cstdlib>
#include <locale>
#include <string>

#include "temporary_folder.h"

namespace sherd::test {

/// Numbers as "1 234,5": streams made meanwhile write and read them so. The functions of C write "1234,5", where localedef
/// (Debian's package locales) can make the locale; c() says so. Not while other threads run.
class CommaLocale {
 public:
  CommaLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new Punctuation))) {
    const std::string make = "localedef -i de_DE -f UTF-8 '" + (folder_ / kName) + "' 2>/dev/null";
    if (std::system(make.c_str()) > 256) return;  // 1: a warning
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    c_ = std::setlocale(LC_ALL, kName) != nullptr;
    ::unsetenv("LOCPATH");
  }
  ~CommaLocale() {
    std::locale::global(before_);
    std::setlocale(LC_ALL, "C");
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

  bool c() const { return c_; }

 private:
  static constexpr const char* kName = "de_DE.UTF-8";
  struct Punctuation : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return ' '; }
    std::string do_grouping() const override { return "\3"; }
  };

  TemporaryFolder folder_;
  std::locale before_;
  bool c_ = false;
};

}  // namespace sherd::test
