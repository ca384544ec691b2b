// Streams of the imitated GPU that run late: what is queued on a stream is done by another thread, some time
// after the call has returned, in an order that only the streams and their events decide. Where a wait is
// missing, or memory is used again too early, results differ from those of the ordinary imitation.
//
// Environment: SHERD_HOST_CUDA_LATE, a number that chooses among orders (unset or empty: every call does at
// once what it would queue). Of the streams that could run, the one that a changing random ranking prefers
// does; now and then all of them pause, so that the host gets ahead.
//
// An operation that throws ends the process with its message: no caller is left to catch it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

struct CUstream_st;

namespace cuda_host {

/// Returns whether streams run late.
bool late();

/// A point in a stream.
struct Mark {
  bool reached = false;
  std::chrono::steady_clock::time_point time{};
};

/// One stream's name among the imitated ones; 0 is the default stream, which waits for no other.
using StreamId = uint64_t;
StreamId new_stream();

/// Does `work` when all that was queued on the stream before it is done; at once when streams do not run
/// late. While the stream is captured: only records it.
void issue(StreamId stream, std::function<void()> work);
/// Number of what was issued on the stream and is not done.
size_t queued(StreamId stream);
/// issue() for a stream of the imitated runtime, by a launch of the driver (strict.h); null is the default one.
void issue_on(CUstream_st* stream, std::function<void()> work);
/// A mark behind what is queued on the stream now.
std::shared_ptr<const Mark> mark(StreamId stream);
/// Makes later work of the stream wait for the mark.
void wait(StreamId stream, std::shared_ptr<const Mark> mark);

/// A mark in no stream, reached when reach() says so.
std::shared_ptr<Mark> open_mark();
void reach(Mark& mark);
/// wait() for a stream of the imitated runtime.
void wait_on(CUstream_st* stream, std::shared_ptr<const Mark> mark);

/// Returns when the mark is reached.
void synchronize(const Mark& mark);
bool reached(const Mark& mark);
/// When it was reached. @pre it has been
std::chrono::steady_clock::time_point time_of(const Mark& mark);

/// Work that was issued on a stream between two calls, to be issued again.
using Graph = std::vector<std::function<void()>>;
bool captured(StreamId stream);
void begin_capture(StreamId stream);
Graph end_capture(StreamId stream);

}  // namespace cuda_host
