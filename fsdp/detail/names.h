// Valid names of modules and parameters. Private to fsdp/.
#pragma once

#include <string_view>

namespace sherd {

/// Checks a name, which checkpoints (JSON, Protobuf), messages and tables contain.
/// @throws InvalidArgument when `name` is empty, not UTF-8, or has control characters; `what` is the named
/// kind of object. The message shows the name as printable() does.
void check_name(std::string_view what, std::string_view name);

}  // namespace sherd
