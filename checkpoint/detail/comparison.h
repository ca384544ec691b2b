// Comparison of the tensors a model wants with those offered, and of their shapes. Private to checkpoint/.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <sherd/checkpoint/detail/wanted.h>
#include <sherd/checkpoint/model_state.h>

namespace sherd {

/// Adds to the report what the options allow to be missing or unexpected.
/// @param source for messages, such as "the checkpoint 'out/step_00000100'"
/// @param offered all of the source; pieces are not looked at
/// @param most_names that a list in a message has; 0 = all
/// @param reads_codes state in 8 bits is read
/// @throws InvalidArgument with all that the options do not allow.
void require_fit(const std::string& source, std::span<const CheckpointTensor> offered,
                 const std::vector<Wanted>& all, const LoadOptions& options, LoadReport& report,
                 size_t most_names = 0, bool reads_codes = false);

}  // namespace sherd
