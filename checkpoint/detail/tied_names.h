// The further names of tied parameters and buffers. Private to checkpoint/.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <sherd/fsdp/module_base.h>

namespace sherd {

class TiedNames {
 public:
  explicit TiedNames(const ModuleBase& root) {
    for (auto& [other, first] : root.tied_names()) others_[first].push_back(other);
    for (auto& [other, first] : root.tied_buffer_names()) others_[first].push_back(other);
  }
  /// All but `name`, the first one. Empty of what is not tied.
  const std::vector<std::string>& of(const std::string& name) const {
    const auto found = others_.find(name);
    return found == others_.end() ? none_ : found->second;
  }

 private:
  std::map<std::string, std::vector<std::string>> others_;
  std::vector<std::string> none_;
};

}  // namespace sherd
