// Abort of the other ranks when this one fails, before its objects are destroyed.
#pragma once

#include <exception>
#include <utility>

#include <sherd/comm/core/communicator.h>

namespace sherd {

/// Calls `work`, and returns what it returns. When it throws, aborts the group with the exception's text, and throws on.
///
/// launch() does the same for a rank's whole body, but by then what lived in the body is gone. What shares collectives
/// with peers (ShardRuntime, Muon, CheckpointSaver) aborts the group when an exception destroys it, so that it need not
/// wait for them, and cannot know why: the other ranks would hear of a failure without its cause. They hear the cause
/// where such objects outlive `work`.
template <class Work>
decltype(auto) abort_on_error(Communicator& world, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& e) {
    world.abort(e.what());
    throw;
  } catch (...) {
    world.abort("an exception that is not a std::exception");
    throw;
  }
}

}  // namespace sherd
