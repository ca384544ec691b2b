// An arrangement as JSON.
#pragma once

#include <iosfwd>

#include "arrangement.h"

namespace sherd::tools {

/// Writes one JSON object; its fields are described by `sherd layout --help` (kLayoutJsonHelp). Per-rank data
/// is made while it is written, so that memory does not grow with world * parameters.
void write_json(std::ostream& out, const Arrangement& a);

extern const char* const kLayoutJsonHelp;

}  // namespace sherd::tools
