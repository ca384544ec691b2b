// Config file: Protobuf text of a message that the program defines.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <sherd/train/settings/fields.h>

namespace google::protobuf {
class Message;
}

namespace sherd {

/// Sets the fields that the file names; the others keep their values. Errors of the file's text are appended
/// to `problems` as "path:line:column: reason", and then no field is set. Values are not checked against
/// bounds.
/// @param message an empty one of the program's type. Each field of the table is an optional one of it with
/// the same name: a string, int64, uint64, double or bool as in the table, or for any of them a string, which
/// is read as the flag's text ("2G" of BYTES). It holds what the file says afterwards.
/// @throws IoError when the file cannot be read.
void read_config_file(const std::string& path, google::protobuf::Message& message,
                      std::span<const FieldGroup> groups, std::vector<std::string>& problems);

}  // namespace sherd
