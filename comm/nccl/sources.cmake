# Sources that work with any table of NCCL's functions; the tests compile them where the backend is off.
set(SHERD_NCCL_SOURCES
  detail/call_check.cpp detail/collectives.cpp detail/handle.cpp detail/issue_order.cpp detail/library_memory.cpp detail/nccl_communicator.cpp
  detail/session.cpp detail/side_channel.cpp detail/window_buffers.cpp detail/windows.cpp)
