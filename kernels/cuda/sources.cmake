# The sources of the CUDA backend; also compiled by a host compiler for the emulation in tests/cuda_host.
set(SHERD_CUDA_SOURCES
  activation.cu attention_backward.cu attention_forward.cu attention_plain.cu device.cpp elementwise.cu embedding.cu
  expert_sort.cu experts.cu gemm.cpp gram.cu index_guard.cu loss.cu muon.cu norm.cu optimizer.cu orthogonalize.cu
  queue.cpp random.cu reduce.cu route.cu runtime.cpp sort_pairs.cu squares.cu
  table.cpp vocab_parallel.cu)
# For chips of compute capability 9.0 alone (wgmma).
set(SHERD_HOPPER_SOURCES symmetric_hopper.cu)
