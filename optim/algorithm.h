// Name of an optimizer, and the properties that routing needs before the optimizer exists.
#pragma once

#include <array>
#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>

#include <sherd/base/error.h>
#include <sherd/dtensor/layout.h>

namespace sherd {

/// Name of an optimizer in routing, tables and messages. This library has two, adamw and muon. A program
/// names its own optimizer by making one more, e.g.
///  constexpr Algorithm kSgd("sgd");
/// and its class by OptimizerOptions::further. A small value: copies are cheap and refer to nothing.
class Algorithm {
 public:
  static const Algorithm adamw, muon;

  constexpr Algorithm() : Algorithm("adamw") {}
  /// Makes a name.
  /// @param name of 1 to 31 lower-case letters, digits and underscores.
  /// @param cut positions at which a rank's piece of such a parameter may begin and end
  /// (Parameter::set_cut()).
  /// @param matrices_only whether it updates nothing but matrices and stacks of them [count, rows, cols].
  /// @throws InvalidArgument for another name; in a constant expression it does not compile.
  constexpr explicit Algorithm(std::string_view name, CutClass cut = CutClass::element,
                               bool matrices_only = false)
      : cut_(cut), matrices_only_(matrices_only) {
    if (name.empty() || name.size() >= name_.size()) refuse(name);
    for (size_t i = 0; i < name.size(); ++i) {
      const char c = name[i];
      if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) refuse(name);
      name_[i] = c;
    }
  }

  constexpr std::string_view name() const& { return name_.data(); }
  std::string_view name() && = delete;  // it would outlive the characters
  constexpr CutClass cut() const { return cut_; }
  constexpr bool matrices_only() const { return matrices_only_; }

  /// Compares by name.
  friend constexpr bool operator==(const Algorithm& a, const Algorithm& b) { return a.name_ == b.name_; }
  friend constexpr auto operator<=>(const Algorithm& a, const Algorithm& b) { return a.name_ <=> b.name_; }

 private:
  [[noreturn]] static void refuse(std::string_view name);

  std::array<char, 32> name_ = {};  // zeros after the name
  CutClass cut_;
  bool matrices_only_;
};

inline constexpr Algorithm Algorithm::adamw("adamw");
inline constexpr Algorithm Algorithm::muon("muon", CutClass::row, true);

std::string name_of(const Algorithm& a);
/// Returns the name in sentences: "AdamW", "Muon", and the plain name of all others.
std::string title_of(const Algorithm& a);
/// Writes the name, for tests' messages.
std::ostream& operator<<(std::ostream& out, const Algorithm& a);

}  // namespace sherd
