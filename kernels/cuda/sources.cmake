# The sources of the CUDA backend; also compiled by a host compiler for the emulation in tests/cuda_host.
set(SHERD_CUDA_SOURCES
  activation.cu attention_backward.cu attention_forward.cu attention_plain.cu cached_attention.cu device.cpp dropout.cu elementwise.cu
  embedding.cu event_clock.cpp expert_sort.cu experts.cu gated.cu gemm.cpp gram.cu index_guard.cu layer_norm.cu
  loss.cu matmul.cpp matrices.cu matrix_norms.cu muon.cu newton_schulz.cpp norm.cu normuon.cu optimizer.cu orthogonalize.cu
  polar.cu products.cpp qk_clip.cu queue.cpp random.cu reduce.cu rope.cu route.cu runtime.cpp softmax.cu sort_pairs.cu squares.cu
  symmetric_tiles.cpp table.cpp vocab_parallel.cu)
# For chips of compute capability 9.0 alone (wgmma), and its replacement where nvcc does not compile.
set(SHERD_HOPPER_SOURCES symmetric_hopper.cu)
set(SHERD_NO_HOPPER_SOURCES no_symmetric_hopper.cpp)
