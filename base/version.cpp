#include <sherd/base/version.h>

namespace sherd {

const char* program_version() { return SHERD_VERSION; }

}  // namespace sherd
