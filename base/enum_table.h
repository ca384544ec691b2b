// Names of an enumeration's values, for printing and parsing.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace sherd {

/// @throws InvalidArgument always: "<what> '<name>' is unknown; use a, b or c".
[[noreturn]] void refuse_name(std::string_view what, std::string_view name,
                              std::span<const char* const> legal);

/// One name for each of the enumeration's N values, which are 0 to N - 1.
template <class E, size_t N>
class EnumTable {
 public:
  template <class... Names>
  requires(sizeof...(Names) == N) explicit constexpr EnumTable(Names... names) : names_{names...} {}

  constexpr const char* name(E value) const {
    return static_cast<size_t>(value) < N ? names_[static_cast<size_t>(value)] : "?";
  }

  /// Same as name(). @throws InvalidArgument listing the legal names when `value` is not an enumerator.
  const char* checked_name(std::string_view what, E value) const {
    if (static_cast<size_t>(value) >= N) refuse_name(what, std::to_string(static_cast<int>(value)), names_);
    return name(value);
  }

  /// Returns the value of that name. @throws InvalidArgument listing the legal names; `what` is the option's.
  E parse(std::string_view what, std::string_view name) const {
    for (size_t i = 0; i < N; ++i)
      if (name == names_[i]) return static_cast<E>(i);
    refuse_name(what, name, names_);
  }

 private:
  const char* names_[N];
};

}  // namespace sherd
