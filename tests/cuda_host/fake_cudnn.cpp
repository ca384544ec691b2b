// cuDNN's attention, imitated on the host in double from the formulas. See fake.h.
//
// Its plans need the workspace that cuDNN's deterministic backward needs on compute capability 9.0, and overwrite it. It
// refuses pointers that are not multiples of 16 bytes.
#include <cuda_runtime_api.h>
#include <sherd/base/error.h>
#include <sherd/kernels/device/cuda/cudnn_library.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/nn/kernels/attention/cuda_cudnn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fake.h"
#include "late.h"

namespace sherd::cuda {
namespace {

int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t workspace_of(const CudnnShape& s) {
  return s.backward ? s.batch * s.kv_heads * s.group * rounded(s.seq, 64) * rounded(s.seq, 128) * 2 : 16;
}

/// Rows of one head.
struct Head {
  bf16* data = nullptr;
  int64_t row = 0;
  Head(void* all, int64_t item_rows, int64_t head, int64_t width, int64_t row_elements)
      : data(static_cast<bf16*>(all) + item_rows * row_elements + head * width), row(row_elements) {}
  bf16& at(int64_t i, int64_t d) const { return data[i * row + d]; }
  double operator()(int64_t i, int64_t d) const { return static_cast<double>(static_cast<float>(at(i, d))); }
};

using Sums = std::vector<double>;  // [seq, head_dim]

void store(const Head& to, const Sums& from, int64_t seq, int64_t width) {
  for (int64_t i = 0; i < seq; ++i)
    for (int64_t d = 0; d < width; ++d)
      to.at(i, d) = bf16(static_cast<float>(from[static_cast<size_t>(i * width + d)]));
}

/// Computes a key head's results with all its query heads.
void run(const CudnnShape& s, const CudnnMemory& m, int64_t item, int64_t key_head) {
  const int64_t seq = s.seq, width = s.head_dim, out_row = s.all_kv_heads * s.group * width,
                in_row = out_row + 2 * s.all_kv_heads * width;
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  const auto in = [&](void* p, int64_t head) { return Head(p, item * seq, head, width, in_row); };
  const auto out = [&](void* p, int64_t head) { return Head(p, item * seq, head, width, out_row); };
  const Head k = in(m.k, key_head), v = in(m.v, key_head);
  const Sums zeros(static_cast<size_t>(seq * width));
  Sums dk = zeros, dv = zeros;
  for (int64_t h = key_head * s.group; h < (key_head + 1) * s.group; ++h) {
    const Head q = in(m.q, h), o = out(m.out, h);
    const int64_t first_row = (item * s.kv_heads * s.group + h) * seq;
    float* const lse = static_cast<float*>(m.lse) + first_row;
    Sums mixed = zeros, dq = zeros;
    for (int64_t i = 0; i < seq; ++i) {
      std::vector<double> p(static_cast<size_t>(i + 1));
      double most = -INFINITY, sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double& score = p[static_cast<size_t>(j)];
        for (int64_t d = 0; d < width; ++d) score += scale * q(i, d) * k(j, d);
        most = std::max(most, score);
      }
      for (const double score : p) sum += std::exp(score - most);
      const float log_sum = s.backward ? lse[i] : static_cast<float>(most + std::log(sum));
      if (s.maxima) {
        static_cast<float*>(m.max)[first_row + i] = static_cast<float>(most);
        static_cast<float*>(m.sum)[first_row + i] = static_cast<float>(sum);
      } else {
        lse[i] = log_sum;
      }
      double delta = 0;
      if (s.backward)
        for (int64_t d = 0; d < width; ++d) delta += out(m.dout, h)(i, d) * o(i, d);
      for (int64_t j = 0; j <= i; ++j) {
        const double weight = std::exp(p[static_cast<size_t>(j)] - static_cast<double>(log_sum));
        double dp = 0;
        const auto at = [&](int64_t row, int64_t d) { return static_cast<size_t>(row * width + d); };
        for (int64_t d = 0; d < width; ++d) {
          if (!s.backward) {
            mixed[at(i, d)] += weight * v(j, d);
          } else {
            dp += out(m.dout, h)(i, d) * v(j, d);
            dv[at(j, d)] += weight * out(m.dout, h)(i, d);
          }
        }
        const double ds = weight * (dp - delta) * scale;
        for (int64_t d = 0; s.backward && d < width; ++d) {
          dq[at(i, d)] += ds * k(j, d);
          dk[at(j, d)] += ds * q(i, d);
        }
      }
    }
    s.backward ? store(in(m.dq, h), dq, seq, width) : store(o, mixed, seq, width);
  }
  if (!s.backward) return;
  store(in(m.dk, key_head), dk, seq, width);
  store(in(m.dv, key_head), dv, seq, width);
}

class Graphs final : public CudnnGraphs {
 public:
  explicit Graphs(cudaStream_t stream) : stream_(stream) {
    cuda_host::count_live(&cuda_host::Live::handles, 1);
  }
  ~Graphs() override { cuda_host::count_live(&cuda_host::Live::handles, -1); }
  std::optional<CudnnPlan> plan(const CudnnShape& shape) override {
    if (cuda_host::enter("cudnn plan")) return {};
    return CudnnPlan{
        workspace_of(shape), [stream = stream_, shape](const CudnnMemory& m, void* workspace) {
          if (cuda_host::enter("cudnn run")) throw CudaError("cuDNN: on purpose");
          for (const void* p : {m.q, m.k, m.v, m.out, m.lse, m.dout, m.dq, m.dk, m.dv, m.max, m.sum})
            if (reinterpret_cast<uintptr_t>(p) % 16 != 0) throw CudaError("cuDNN: misaligned tensor");
          cuda_host::issue_on(stream, [shape, m, workspace] {
            std::memset(workspace, 0xff, static_cast<size_t>(workspace_of(shape)));
            for (int64_t item = 0; item < shape.batch; ++item)
              for (int64_t head = 0; head < shape.kv_heads; ++head) run(shape, m, item, head);
          });
        }};
  }

 private:
  const cudaStream_t stream_;
};

}  // namespace

CudnnLibrary cudnn_library() {
  const char* const version = std::getenv("SHERD_HOST_CUDNN_VERSION");
  if (!version) return {.problem = "none is imitated"};
  return {const_cast<char*>(version), std::atoll(version), {}};
}

std::unique_ptr<CudnnGraphs> make_cudnn_graphs(void* stream) {
  if (const int code = cuda_host::enter("cudnnCreate"))
    throw CudaError("cudnnCreate: cuDNN status " + std::to_string(code));
  return std::make_unique<Graphs>(static_cast<cudaStream_t>(stream));
}

}  // namespace sherd::cuda
