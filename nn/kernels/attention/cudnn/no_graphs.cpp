// Twin of graphs.cpp for builds without cudnn-frontend: cudnn_library() has no library there.
#include <sherd/base/error.h>
#include <sherd/nn/kernels/attention/cuda_cudnn.h>

namespace sherd::cuda {

std::unique_ptr<CudnnGraphs> make_cudnn_graphs(void*) {
  throw NotCompiled("this build has no cuDNN; configure with -DSHERD_CUDNN=ON");
}

}  // namespace sherd::cuda
