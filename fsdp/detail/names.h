// Valid names of modules and parameters. Private to fsdp/.
#pragma once

#include <string_view>

namespace sherd {

/// Names go into checkpoints (JSON, Protobuf), messages and tables.
/// @throws InvalidArgument when `name` is empty, not UTF-8, or has control characters; `what` says of what it
/// is the name. The message shows the name as printable() does.
void check_name(std::string_view what, std::string_view name);

}  // namespace sherd
