// Record of a fully_shard() call at its module.
#pragma once

#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/options.h>

namespace sherd {

/// Arguments of a fully_shard() call, kept at its module until the root's call.
struct Wrap {
  DeviceMesh mesh;
  FullyShardOptions options;
  RootOptions root = {};  // of the root alone
};

}  // namespace sherd
