# What works over any table of NCCL's functions; the tests compile it where the backend is off.
set(SHERD_NCCL_SOURCES agreement.cpp collectives.cpp handle.cpp nccl_communicator.cpp roll_call.cpp session.cpp
  window_buffers.cpp windows.cpp)
