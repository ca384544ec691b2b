// Roles that single words of a parameter's name indicate.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/optim/detail/name_words.h>
#include <sherd/optim/role.h>

namespace sherd::role_words {

using Guess = std::optional<RoleGuess>;
using Words = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view text, Words all);
/// Returns the first of the part's words that is one of `all`, or "".
std::string word_of(const NamePart& part, Words all);
/// Returns the word that makes the part a head's, or "".
std::string head_word(const NamePart& part);
/// Returns whether it is a usual name of a model's or a layer's last matrix: "output", "output_layer",
/// "output_projection".
bool is_output(const NamePart& part);

/// Returns the parts between the innermost list and the owner: the parts above a list of layers belong to the
/// whole model.
std::vector<NamePart> near(const NamedPlace& at);
/// Returns the first word that word_in() finds in one of the parts, and that part; "" = none.
template <class F>
std::string in_any(const std::vector<NamePart>& parts, F word_in, const NamePart** found) {
  for (const NamePart& p : parts)
    if (std::string w = word_in(p); !w.empty()) {
      *found = &p;
      return w;
    }
  return "";
}

RoleGuess sure(Role role, std::string_view word, const NamePart& part);
RoleGuess unsure(Role role, const std::string& why);

Guess embedding(const NamedPlace& at);
Guess state_space(const NamedPlace& at);
Guess norm(const NamedPlace& at);
/// @param dims 2 or 3.
Guess conv(const NamedPlace& at, size_t dims);

}  // namespace sherd::role_words
