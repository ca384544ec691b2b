// Names of optimizer state in files. Private to checkpoint/.
#pragma once

#include <string>

namespace sherd {

inline const std::string kStatePrefix = "optim.state.";

/// "optim.state.blocks.0.fc.weight.exp_avg", PyTorch's spelling.
inline std::string state_name(const std::string& param, const std::string& key) {
  return kStatePrefix + param + "." + key;
}

}  // namespace sherd
