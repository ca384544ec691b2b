// Conversion between Manifest and the Protobuf message of manifest.proto, value for value.
#pragma once

#include <sherd/checkpoint/format/manifest.h>

#include "manifest.pb.h"

namespace sherd {

/// Everything but the sequence number. @throws InvalidArgument for text that is not UTF-8.
proto::Manifest to_message(const Manifest& manifest);
/// The reverse. @throws CorruptCheckpoint for values that a Manifest cannot hold; rules are not checked.
Manifest from_message(const proto::Manifest& message);

}  // namespace sherd
