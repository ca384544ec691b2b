// Forms of a model's weights in files of other programs: names, divisions, and further tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sherd/fsdp/stored_names.h>

namespace sherd {

/// The forms in which a model may be found. Of all forms, each with and without each of the prefixes, and of
/// the parameters' own names, the one is taken of which the most tensors are there: of several the one that
/// lacks the fewest, then the first.
///
/// Example, GPT-2: forms {q, k and v as columns of c_attn}, droppable_prefixes {"transformer."} for folders
/// that hold the trunk alone, ignored_endings {".attn.bias", ".attn.masked_bias"}, copies {{"lm_head.weight",
/// "transformer.wte.weight"}}.
struct StoredForms {
  /// Written as the first, where no folder is followed. None: the parameters' own names.
  std::vector<StoredNames> forms = {};
  /// Beginnings that the names in a file may lack, all of those that have it.
  std::vector<std::string> droppable_prefixes = {};
  /// Tensors whose names end so and that no parameter wants are not looked at, whatever type they are of:
  /// buffers that other programs make anew.
  std::vector<std::string> ignored_endings = {};
  /// Tensors that repeat another one, by name: a tied head that is stored all the same. They are not read
  /// where the other is there (but for a sample, which must be equal), and stand for it where it is not.
  std::map<std::string, std::string> copies = {};
};

}  // namespace sherd
