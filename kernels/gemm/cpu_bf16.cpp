#include "cpu_bf16.h"

#include <dnnl.hpp>

#include <algorithm>
#include <string>
#include <string_view>

#include <sherd/base/error.h>
#include <sherd/kernels/device/cpu/features.h>

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

/// A product as oneDNN computes it. oneDNN keeps primitives of the last 1024 shapes: making one again takes 1 to 4 us.
class Product {
 public:
  Product(const GemmArgs& g, dnnl::scratchpad_mode scratchpad)
      : a_(matrix(g.m, g.k, g.a.dtype, g.trans_a, g.lda)),
        b_(matrix(g.k, g.n, g.b.dtype, g.trans_b, g.ldb)),
        c_(matrix(g.m, g.n, g.c.dtype, false, g.ldc)),
        chosen_(product(a_, b_, c_, attributes(g, scratchpad), engine_)) {}

  bool fast() const { return !std::string_view(chosen_.impl_info_str()).starts_with("ref"); }
  int64_t scratch_bytes() const {
    return std::max<int64_t>(1, static_cast<int64_t>(chosen_.scratchpad_desc().get_size()));
  }
  dnnl::matmul primitive() const { return dnnl::matmul(chosen_); }
  void run(const dnnl::matmul& primitive, const GemmArgs& g, void* scratch) const {
    const auto at = [&](const Desc& desc, void* data) { return dnnl::memory(desc, engine_, data); };
    const dnnl::memory from = at(a_, g.a.data), weights = at(b_, g.b.data), to = at(c_, g.c.data);
    const dnnl::memory room = scratch ? at(chosen_.scratchpad_desc(), scratch) : dnnl::memory();
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, from.get()},
                                    {DNNL_ARG_WEIGHTS, weights.get()},
                                    {DNNL_ARG_DST, to.get()},
                                    {DNNL_ARG_SCRATCHPAD, scratch ? room.get() : nullptr}};
    dnnl::stream stream(engine_);
    const dnnl_status_t status = dnnl_primitive_execute(primitive.get(), stream.get(), scratch ? 4 : 3, args);
    if (status != dnnl_success) throw dnnl::error(status, "could not execute a product");
    stream.wait();
  }

 private:
  static dnnl::primitive_attr attributes(const GemmArgs& g, dnnl::scratchpad_mode scratchpad) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(scratchpad);
    if (g.beta != 0) {
      dnnl::post_ops sum;
      sum.append_sum(g.beta);
      attributes.set_post_ops(sum);
    }
    return attributes;
  }

  const dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  const Desc a_, b_, c_;
  const dnnl::matmul::primitive_desc chosen_;
};

/// The product that multiply_bf16() computes, if any. @throws dnnl::error where oneDNN has none.
std::optional<Product> product_of(const GemmArgs& g) {
  if (g.a.dtype != DType::bf16 || g.alpha != 1 || g.k == 0 || features().bf16_products == nullptr) return {};
  std::optional<Product> product(std::in_place, g, dnnl::scratchpad_mode::user);
  if (!product->fast()) product.reset();
  return product;
}

[[noreturn]] void fail(const GemmArgs& g, const dnnl::error& e) {
  throw Error("oneDNN's product of m " + std::to_string(g.m) + ", n " + std::to_string(g.n) + ", k " +
              std::to_string(g.k) + ": " + e.what());
}

}  // namespace

std::optional<int64_t> scratch_bf16(const GemmArgs& g) {
  try {
    const std::optional<Product> product = product_of(g);
    return product ? std::optional(product->scratch_bytes()) : std::nullopt;
  } catch (const dnnl::error&) {
    return {};
  }
}

bool multiply_bf16(ExecutionContext& context, const GemmArgs& g) {
  try {
    const std::optional<Product> product = product_of(g);
    if (product) product->run(product->primitive(), g, context.scratch(product->scratch_bytes()));
    return product.has_value();
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented) return false;
    fail(g, e);
  }
}

struct Bf16Product::Made {
  GemmArgs sizes;
  Product product;
  dnnl::matmul primitive;
};

namespace {

GemmArgs args_of(const Bf16Product::Sizes& s) {
  const Ref half{nullptr, DType::bf16};
  return {.trans_a = s.trans_a,
          .trans_b = s.trans_b,
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .beta = s.beta,
          .a = half,
          .b = half,
          .c = {nullptr, s.to},
          .lda = s.lda,
          .ldb = s.ldb,
          .ldc = s.ldc};
}

}  // namespace

Bf16Product::Bf16Product(const Sizes& sizes) {
  const GemmArgs g = args_of(sizes);
  try {
    const Product product(g, dnnl::scratchpad_mode::library);
    made_ = std::make_unique<const Made>(Made{g, product, product.primitive()});
  } catch (const dnnl::error& e) {
    fail(g, e);
  }
}

Bf16Product::~Bf16Product() = default;
Bf16Product::Bf16Product(Bf16Product&&) noexcept = default;

void Bf16Product::run(const bf16* a, const bf16* b, void* c) const {
  GemmArgs g = made_->sizes;
  g.a.data = const_cast<bf16*>(a);
  g.b.data = const_cast<bf16*>(b);
  g.c.data = c;
  try {
    made_->product.run(made_->primitive, g, nullptr);
  } catch (const dnnl::error& e) {
    fail(g, e);
  }
}

}  // namespace sherd::cpu
