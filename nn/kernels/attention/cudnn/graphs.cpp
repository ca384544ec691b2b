// cuDNN's graphs by cudnn-frontend, whose headers look for every function in the loaded library.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include <sherd/kernels/device/cuda/cudnn_library.h>
#include <sherd/kernels/device/cuda/runtime.h>
#include <sherd/nn/kernels/attention/cuda_cudnn.h>

namespace cudnn_frontend {
// The frontend wants this variable: the library to look in. Written once, before its first function is called.
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace sherd::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Id : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kMax, kSum };

/// A graph of one call, not planned yet.
class Builder {
 public:
  explicit Builder(const CudnnShape& shape) : shape_(shape), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    shape_.backward ? backward() : forward();
  }
  const std::shared_ptr<fe::graph::Graph>& graph() const { return graph_; }

 private:
  int64_t heads() const { return shape_.kv_heads * shape_.group; }
  int64_t out_row() const { return shape_.all_kv_heads * shape_.group * shape_.head_dim; }
  int64_t in_row() const { return out_row() + 2 * shape_.all_kv_heads * shape_.head_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.head_dim)); }

  void describe(fe::graph::Tensor_attributes& t, Id id, int64_t heads, int64_t row) const {
    t.set_uid(id)
        .set_dim({shape_.batch, heads, shape_.seq, shape_.head_dim})
        .set_stride({shape_.seq * row, shape_.head_dim, row, 1});
  }
  /// A number of each score row.
  void describe_rows(fe::graph::Tensor_attributes& t, Id id) const {
    t.set_uid(id)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({shape_.batch, heads(), shape_.seq, 1})
        .set_stride({heads() * shape_.seq, shape_.seq, 1, 1});
  }
  Tensor input(Id id, int64_t heads, int64_t row) {
    fe::graph::Tensor_attributes t;
    describe(t, id, heads, row);
    return graph_->tensor(t);
  }
  Tensor rows(Id id) {
    fe::graph::Tensor_attributes t;
    describe_rows(t, id);
    return graph_->tensor(t);
  }
  void output(const Tensor& t, Id id, int64_t heads, int64_t row) const {
    t->set_output(true);
    describe(*t, id, heads, row);
  }

  void forward() {
    const Tensor q = input(kQ, heads(), in_row()), k = input(kK, shape_.kv_heads, in_row()),
                 v = input(kV, shape_.kv_heads, in_row());
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention_forward")
                          .set_generate_stats(!shape_.maxima)
                          .set_causal_mask(true)
                          .set_attn_scale(scale());
    // Before 9.21 cuDNN has either lse or these two, never both.
    if (shape_.maxima) attributes.set_logit_max(rows(kMax)).set_score_sum_exp(rows(kSum));
    const auto [out, lse] = graph_->sdpa(q, k, v, attributes);
    output(out, kOut, heads(), out_row());
    if (shape_.maxima) return;
    lse->set_output(true);
    describe_rows(*lse, kLse);
  }

  void backward() {
    const Tensor q = input(kQ, heads(), in_row()), k = input(kK, shape_.kv_heads, in_row()),
                 v = input(kV, shape_.kv_heads, in_row());
    const Tensor out = input(kOut, heads(), out_row()), dout = input(kDout, heads(), out_row());
    const auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, out, dout, rows(kLse),
                                                    fe::graph::SDPA_backward_attributes()
                                                        .set_name("attention_backward")
                                                        .set_causal_mask(true)
                                                        .set_attn_scale(scale())
                                                        .set_deterministic_algorithm(true));
    output(dq, kDq, heads(), in_row());
    output(dk, kDk, shape_.kv_heads, in_row());
    output(dv, kDv, shape_.kv_heads, in_row());
  }

  const CudnnShape shape_;
  const std::shared_ptr<fe::graph::Graph> graph_;
};

class Graphs final : public CudnnGraphs {
 public:
  explicit Graphs(cudaStream_t stream) {
    check(fe::detail::create_handle(&handle_), "cudnnCreate");
    const cudnnStatus_t bound = fe::detail::set_stream(handle_, stream);
    if (bound != CUDNN_STATUS_SUCCESS) fe::detail::destroy_handle(handle_);
    check(bound, "cudnnSetStream");
  }
  ~Graphs() override { fe::detail::destroy_handle(handle_); }

  std::optional<CudnnPlan> plan(const CudnnShape& shape) override {
    try {
      const Builder builder(shape);
      const std::shared_ptr<fe::graph::Graph> graph = builder.graph();
      int64_t bytes = 0;
      if (graph->validate().is_bad() || graph->build_operation_graph(handle_).is_bad() ||
          graph->create_execution_plans({fe::HeurMode_t::A}).is_bad() || graph->check_support().is_bad() ||
          graph->build_plans().is_bad() || graph->get_workspace_size(bytes).is_bad())
        return {};
      const char* const what = shape.backward ? "attention_backward" : "attention_forward";
      return CudnnPlan{
          bytes, [handle = handle_, graph, what](const CudnnMemory& m, void* workspace) {
            std::unordered_map<int64_t, void*> memory{{kQ, m.q}, {kK, m.k}, {kV, m.v}, {kOut, m.out}};
            if (m.max) {
              memory.emplace(kMax, m.max);
              memory.emplace(kSum, m.sum);
            } else {
              memory.emplace(kLse, m.lse);
            }
            if (m.dq) memory.insert({{kDout, m.dout}, {kDq, m.dq}, {kDk, m.dk}, {kDv, m.dv}});
            auto result = graph->execute(handle, memory, workspace);
            if (result.is_bad()) throw CudaError(fmt::format("{}: cuDNN: {}", what, result.get_message()));
          }};
    } catch (const std::runtime_error&) {  // a library without one of the functions
      return {};
    }
  }

 private:
  static void check(cudnnStatus_t status, const char* what) {
    if (status != CUDNN_STATUS_SUCCESS)
      throw CudaError(fmt::format("{}: cuDNN status {}", what, static_cast<int>(status)));
  }
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace

std::unique_ptr<CudnnGraphs> make_cudnn_graphs(void* stream) {
  [[maybe_unused]] static const bool loaded = [] {
    fe::cudnn_dlhandle = cudnn_library().handle;
    return true;
  }();
  return std::make_unique<Graphs>(static_cast<cudaStream_t>(stream));
}

}  // namespace sherd::cuda
