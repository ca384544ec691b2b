// Abort of the other ranks when this one fails, before its objects are destroyed.
#pragma once

#include <exception>
#include <utility>

#include <sherd/comm/core/communicator.h>

namespace sherd {

/// Calls `work` and returns its result. When it throws, aborts the group with the exception's text and
/// rethrows.
///
/// launch() does the same for a rank's whole body, but the objects of the body are destroyed before. An
/// object that shares collectives with peers (ShardRuntime, Muon, CheckpointSaver) aborts the group when an
/// exception destroys it, so that it does not wait for them. It does not know the cause, so the other ranks
/// would report a failure without one. With abort_on_error() they report the cause, if such objects outlive
/// `work`.
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
