#include "cpu_bf16.h"

#include <dnnl.hpp>

#include <algorithm>
#include <string>
#include <string_view>

#include <sherd/kernels/device/cpu/bf16_products.h>
#include <sherd/kernels/device/error.h>

namespace sherd::cpu {
namespace {

using Desc = dnnl::memory::desc;

Desc matrix(int64_t rows, int64_t cols, DType dtype, bool transposed, int64_t ld) {
  const auto type = dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  return {{rows, cols}, type, transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1}};
}

dnnl::matmul::primitive_desc product(const Desc& a, const Desc& b, const Desc& c,
                                     const dnnl::primitive_attr& attributes, const dnnl::engine& engine) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, engine};
#endif
}

struct Product {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  Desc a, b, c;
  dnnl::matmul::primitive_desc chosen;

  int64_t scratch() const {
    return std::max<int64_t>(1, static_cast<int64_t>(chosen.scratchpad_desc().get_size()));
  }
};

/// @throws dnnl::error where oneDNN does not compute it.
std::optional<Product> product_of(const GemmArgs& g) {
  if (g.a.dtype != DType::bf16 || g.alpha != 1 || g.k == 0 || !bf16_products()) return {};
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.beta != 0) {
    dnnl::post_ops sum;
    sum.append_sum(g.beta);
    attributes.set_post_ops(sum);
  }
  Product p;
  p.a = matrix(g.m, g.k, g.a.dtype, g.trans_a, g.lda);
  p.b = matrix(g.k, g.n, g.b.dtype, g.trans_b, g.ldb);
  p.c = matrix(g.m, g.n, g.c.dtype, false, g.ldc);
  // oneDNN keeps primitives of the last 1024 shapes: asking again takes some 10 us.
  p.chosen = product(p.a, p.b, p.c, attributes, p.engine);
  if (std::string_view(p.chosen.impl_info_str()).starts_with("ref")) return {};
  return p;
}

}  // namespace

std::optional<int64_t> scratch_bf16(const GemmArgs& g) {
  try {
    const std::optional<Product> p = product_of(g);
    return p ? std::optional(p->scratch()) : std::nullopt;
  } catch (const dnnl::error&) {
    return {};
  }
}

bool multiply_bf16(ExecutionContext& context, const GemmArgs& g) {
  try {
    const std::optional<Product> p = product_of(g);
    if (!p) return false;
    const auto at = [&](const Desc& desc, void* data) { return dnnl::memory(desc, p->engine, data); };
    dnnl::stream stream(p->engine);
    dnnl::matmul(p->chosen).execute(
        stream, {{DNNL_ARG_SRC, at(p->a, g.a.data)},
                 {DNNL_ARG_WEIGHTS, at(p->b, g.b.data)},
                 {DNNL_ARG_DST, at(p->c, g.c.data)},
                 {DNNL_ARG_SCRATCHPAD, at(p->chosen.scratchpad_desc(), context.scratch(p->scratch()))}});
    stream.wait();
    return true;
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented) return false;
    throw Error("oneDNN's product of m " + std::to_string(g.m) + ", n " + std::to_string(g.n) + ", k " +
                std::to_string(g.k) + ": " + e.what());
  }
}

}  // namespace sherd::cpu
