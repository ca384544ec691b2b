// Version of sherd.
#pragma once

namespace sherd {

/// Returns "0.1.0": sherd's version.
const char* program_version();

}  // namespace sherd
