#include <sherd/torch/context_attention.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <sherd/torch/convert.h>
#include <sherd/torch/detail/calls.h>
#include <sherd/torch/detail/torch_device.h>

namespace sherd::torch {
namespace {

/// Layout of one exchange of [batch, here, columns] for [batch, seq, columns / ranks].
struct HeadExchange final : ::torch::CustomClassHolder {
  HeadExchange(sherd::nn::SequenceSlice of, std::vector<int64_t> columns)
      : slice(std::move(of)), blocks(std::move(columns)) {}
  const sherd::nn::SequenceSlice slice;
  const std::vector<int64_t> blocks;

  at::Tensor run(const at::Tensor& from, bool to_heads) const {
    const sherd::nn::ContextParallel& ranks = slice.ranks;
    Device& device = ranks.comm->device();
    const auto place = detail::TorchDevice::of(device);
    const auto compute = place->on_compute();
    compute->takes(from);
    const auto [begin, end] = ranks.own_positions(slice.seq);
    const int64_t batch = from.size(0), columns = from.size(2);
    const at::Tensor in = from.contiguous();
    at::Tensor out = to_heads ? at::empty({batch, slice.seq, columns / ranks.size()}, in.options())
                              : at::empty({batch, end - begin, columns * ranks.size()}, in.options());
    const auto rows = [&](const at::Tensor& x) {
      return from_torch(x.detach().view({batch * x.size(1), x.size(2)}), device);
    };
    const Serving serving(*ranks.comm, Purpose("sherd::torch::context_attention"));
    if (to_heads)
      slice.to_heads(device.compute(), rows(out), rows(in), blocks, batch);
    else
      slice.to_rows(device.compute(), rows(out), rows(in), blocks, batch);
    place->join();
    compute->gives(out);
    return out;
  }
};

struct SherdExchangeHeads : ::torch::autograd::Function<SherdExchangeHeads> {
  static at::Tensor forward(::torch::autograd::AutogradContext* context,
                            const c10::intrusive_ptr<HeadExchange>& exchange, bool to_heads,
                            const at::Tensor& from) {
    context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    context->saved_data["to_heads"] = to_heads;
    return exchange->run(from, to_heads);
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   const ::torch::autograd::variable_list& gradients) {
    const auto exchange =
        c10::static_intrusive_pointer_cast<HeadExchange>(context->saved_data.at("exchange").toCapsule());
    return {at::Tensor(), at::Tensor(),
            apply(exchange, !context->saved_data.at("to_heads").toBool(), gradients[0])};
  }
};

/// Notes that the calling model attends to whole sequences.
void note_whole_sequences(const sherd::nn::SequenceSlice& slice) {
  Unit* const unit = detail::running_unit();
  if (unit == nullptr) return;
  if (unit->context_ranks() != slice.ranks.size())
    throw InvalidArgument(
        fmt::format("sherd::torch::context_attention: {} ranks share the sequences of unit '{}' "
                    "(FullyShardOptions::context_dim), "
                    "but the slice has {}; make it with ContextParallel::of() the model's mesh",
                    unit->context_ranks(), unit->name(), slice.ranks.size()));
  unit->note_whole_sequences();
}

void require_shapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t here, int64_t seq,
                    int ranks) {
  const auto fits = [&](const at::Tensor& x, int64_t heads) {
    return x.dim() == 4 && x.size(0) == q.size(0) && x.size(1) == heads && x.size(2) == here;
  };
  if (!fits(q, q.size(1)) || !fits(k, k.size(1)) || !fits(v, k.size(1)))
    throw ShapeMismatch(
        fmt::format("sherd::torch::context_attention: query {}, key {}, value {} must be [batch, heads, {}, "
                    "width], this rank's "
                    "slices of sequences of {} positions over {} ranks",
                    c10::str(q.sizes()), c10::str(k.sizes()), c10::str(v.sizes()), here, seq, ranks));
  if (q.size(1) % ranks != 0 || k.size(1) % ranks != 0)
    throw InvalidArgument(
        fmt::format("sherd::torch::context_attention: {} context-parallel ranks do not divide {} heads and "
                    "{} key heads; use a "
                    "number of ranks that divides both",
                    ranks, q.size(1), k.size(1)));
}

/// Returns the part of a mask for the rank's heads.
at::Tensor mask_of_heads(const at::Tensor& mask, int64_t heads, int64_t seq,
                         const sherd::nn::ContextParallel& ranks) {
  const auto is = [&](int64_t dim, int64_t size) {
    return mask.dim() < dim || mask.size(-dim) == 1 || mask.size(-dim) == size;
  };
  if (!is(1, seq) || !is(2, seq) || !is(3, heads))
    throw ShapeMismatch(
        fmt::format("sherd::torch::context_attention: the mask is {}, must broadcast to [batch, {}, {}, {}]: "
                    "it covers whole "
                    "sequences and the heads of all ranks",
                    c10::str(mask.sizes()), heads, seq, seq));
  if (mask.dim() < 3 || mask.size(-3) == 1) return mask;
  return mask.narrow(-3, ranks.rank() * heads / ranks.size(), heads / ranks.size());
}

}  // namespace

at::Tensor slice_of(const at::Tensor& x, const sherd::nn::SequenceSlice& slice) {
  if (!slice.cuts()) return x;
  if (x.dim() < 2 || x.size(1) != slice.seq)
    throw ShapeMismatch(fmt::format("sherd::torch::slice_of: the tensor is {}, must be [batch, {}, ...]",
                                    c10::str(x.sizes()), slice.seq));
  const auto [begin, end] = slice.ranks.own_positions(slice.seq);
  return x.slice(1, begin, end);
}

at::Tensor context_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const sherd::nn::SequenceSlice& slice,
                             const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                             std::optional<double> scale, bool enable_gqa) {
  note_whole_sequences(slice);
  if (!slice.cuts())
    return at::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                            enable_gqa);
  const int ranks = slice.ranks.size();
  const auto [begin, end] = slice.ranks.own_positions(slice.seq);
  require_shapes(query, key, value, end - begin, slice.seq, ranks);
  std::optional<at::Tensor> mask;
  if (attn_mask && attn_mask->defined())
    mask = mask_of_heads(*attn_mask, query.size(1), slice.seq, slice.ranks);

  // [batch, here, columns of query, key and value], and the rank's share of each over whole sequences.
  std::vector<at::Tensor> parts;
  std::vector<int64_t> blocks, shares;
  for (const at::Tensor* const x : {&query, &key, &value}) {
    parts.push_back(x->transpose(1, 2).flatten(2));
    blocks.push_back(parts.back().size(2));
    shares.push_back(blocks.back() / ranks);
  }
  parts = SherdExchangeHeads::apply(c10::make_intrusive<HeadExchange>(slice, blocks), true, at::cat(parts, 2))
              .split_with_sizes(shares, 2);
  const auto heads = [](const at::Tensor& rows, const at::Tensor& like) {
    return rows.unflatten(2, {-1, like.size(3)}).transpose(1, 2);
  };
  const at::Tensor seen =
      at::scaled_dot_product_attention(heads(parts[0], query), heads(parts[1], key), heads(parts[2], value),
                                       mask, dropout_p, is_causal, scale, enable_gqa)
          .transpose(1, 2)
          .flatten(2);
  const std::vector<int64_t> all{seen.size(2) * ranks};
  return heads(SherdExchangeHeads::apply(c10::make_intrusive<HeadExchange>(slice, all), false, seen), value);
}

}  // namespace sherd::torch
