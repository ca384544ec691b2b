// Numbers of rapidcheck's generator.
#pragma once

#include <cstdint>

#include <rapidcheck.h>

namespace sherd {

/// One of from, ..., to.
inline int64_t pick(int64_t from, int64_t to) { return *rc::gen::inRange<int64_t>(from, to + 1); }

}  // namespace sherd
