// Forms of a model's weights in files of other programs: names, divisions, and further tensors.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/fsdp/stored_names.h>

namespace sherd {

/// Forms in which a model may be stored. Candidates are all forms and the parameters' own names, each with
/// and without each of the prefixes. The candidate with the most tensors present is used; of several, the one
/// that lacks the fewest, then the first.
///
/// Example, GPT-2: forms {q, k and v as columns of c_attn}, droppable_prefixes {"transformer."} for folders
/// that hold the trunk alone, ignored_endings {".attn.bias", ".attn.masked_bias"}, copies {{"lm_head.weight",
/// "transformer.wte.weight"}}.
struct StoredForms {
  /// An export uses the first, unless it follows a folder. Empty: the parameters' own names.
  std::vector<StoredNames> forms = {};
  /// Prefixes that may be absent in a file, from all names that have them.
  std::vector<std::string> droppable_prefixes = {};
  /// Endings of tensors to ignore, whatever their type, when no parameter uses them: buffers that other
  /// programs recompute.
  std::vector<std::string> ignored_endings = {};
  /// Tensors that repeat another one, by name: a tied head that is stored all the same. They are not read
  /// where the other is present (except for a sample, which must be equal), and replace it where it is
  /// absent.
  std::map<std::string, std::string> copies = {};
  /// Those of `copies` that an export writes if it follows no folder; it leaves the others out.
  std::set<std::string> written_copies = {};
  /// Returns whether files hold the parameter or buffer of this full name; others keep their values, and are not written.
  /// Empty: files hold all of them.
  std::function<bool(std::string_view)> holds = {};
};

}  // namespace sherd
