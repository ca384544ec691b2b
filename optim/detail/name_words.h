// Words of a parameter's name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// One part of a name between dots.
struct NamePart {
  std::string text;                // as in the name
  std::vector<std::string> words;  // in lower case, e.g. {"layer", "norm"} of "LayerNorm", {"conv", "1", "d"}

  bool is_number() const;
  /// Returns whether it is an index in a list: "3", "layer_0", "block12", but not "norm1".
  bool is_listed() const;
  bool has(std::string_view word) const;
};

/// Splits a name into parts at dots, and into words at everything that is neither letter nor digit, between
/// letters and digits, and where lower case turns into upper case ("SelfAttention", "adaLN", "LMHead").
std::vector<NamePart> parts_of(std::string_view name);

/// Owner of a parameter's name: its module, where the last part only selects one of the module's parameters
/// ("fc.weight": {"fc"}, "mlp.0.weight": {"mlp"}), else the parameter itself ("pos_embed").
struct NamedPlace {
  std::vector<NamePart> above;  // outermost first
  NamePart owner;               // empty for a parameter called "weight" alone
  NamePart leaf;                // the last part
  std::string prefix;           // prefix of the owner's siblings in the model ("", "blocks.0.mlp.")

  /// The leaf is the parameter's own name ("A_log"), not "weight" or the like.
  bool bare = false;
  /// Below a place in a list, as the layers of a model are.
  bool numbered() const;
};

NamedPlace place_of(std::string_view name);

}  // namespace sherd
