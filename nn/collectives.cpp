#include <sherd/nn/collectives.h>

#include <fmt/format.h>

#include <numeric>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/reduced.h>
#include <sherd/nn/shapes.h>

namespace sherd::nn {

using namespace detail;

namespace {

using Comm = std::shared_ptr<Communicator>;

/// x with `dim` first, `of` that, and back.
template <class F>
Var along(const char* function, const Var& x, int64_t dim, F of) {
  const int64_t d = dims_of(function, x.shape(), {dim})[0];
  return d == 0 ? of(x) : transpose(of(transpose(x, 0, d)), 0, d);
}

bool alone(const Comm& comm) { return comm == nullptr || comm->size() == 1; }

void require_divides(const char* function, const Communicator& comm, const Var& x) {
  if (x.size(0) % comm.size() != 0)
    throw ShapeMismatch(fmt::format("{}: the dimension has {} elements (x {}), which {} ranks do not divide",
                                    function, x.size(0), to_string(x.shape()), comm.size()));
}

Tensor gathered(Stream& s, Communicator& comm, const Tensor& x) {
  Shape shape = x.shape();
  shape[0] *= comm.size();
  const Tensor all = like(x, shape);
  comm.all_gather(s, all.unowned_view(), x.unowned_view());
  return all;
}

Tensor scattered(Stream& s, Communicator& comm, const Tensor& x) {
  Shape shape = x.shape();
  shape[0] /= comm.size();
  const Tensor own = like(x, shape);
  comm.reduce_scatter(s, own.unowned_view(), x.unowned_view());
  return own;
}

Tensor summed(Stream& s, Communicator& comm, const Tensor& x) {
  const Tensor sum = like(x);
  ops::copy(s, sum, x);
  comm.all_reduce(s, sum.unowned_view());
  return sum;
}

/// A function of x alone by one collective, whose backward is `back` of the result's gradient.
template <class F, class G>
Var collective(const char* name, const Comm& comm, const Var& x, F there, G back) {
  const auto shape = std::make_shared<Shape>();
  return function(
      {x},
      [&](Stream& s) {
        const Tensor y = there(s, *comm, x.value());
        *shape = y.shape();
        return y;
      },
      [comm, back, shape, device = &x.device(), dtype = x.dtype()](Stream& s, const BackwardCall& call)
          -> std::vector<Gradient> { return {back(s, *comm, call.output().tensor(*device, *shape, dtype))}; },
      {}, name);
}

}  // namespace

Var all_gather(const Comm& comm, const Var& x, int64_t dim) {
  return along("all_gather", x, dim, [&](const Var& v) {
    return alone(comm) ? v : collective("all_gather", comm, v, gathered, scattered);
  });
}

Var reduce_scatter(const Comm& comm, const Var& x, int64_t dim) {
  return along("reduce_scatter", x, dim, [&](const Var& v) {
    if (alone(comm)) return v;
    require_divides("reduce_scatter", *comm, v);
    return collective("reduce_scatter", comm, v, scattered, gathered);
  });
}

Var all_reduce(const Comm& comm, const Var& x) {
  return alone(comm) ? x : collective("all_reduce", comm, x, summed, summed);
}

Var all_to_all(const Comm& comm, const Var& x, int64_t dim) {
  return along("all_to_all", x, dim, [&](const Var& v) {
    if (alone(comm)) return v;
    require_divides("all_to_all", *comm, v);
    const std::vector<int64_t> rows(static_cast<size_t>(comm->size()), v.size(0) / comm->size());
    return all_to_all(comm, v, rows, rows);
  });
}

Var all_to_all(const Comm& comm, const Var& x, const std::vector<int64_t>& send_rows,
               const std::vector<int64_t>& receive_rows) {
  const size_t ranks = comm == nullptr ? 1 : static_cast<size_t>(comm->size());
  const auto total = [](const std::vector<int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), int64_t{0});
  };
  if (x.shape().empty() || send_rows.size() != ranks || receive_rows.size() != ranks ||
      total(send_rows) != x.size(0))
    throw ShapeMismatch(
        fmt::format("all_to_all: {} and {} numbers of rows on {} ranks, {} rows to send of x {}; give one "
                    "for each rank, which "
                    "add up to the rows of x",
                    send_rows.size(), receive_rows.size(), ranks, total(send_rows), to_string(x.shape())));
  if (ranks == 1) return x;
  const int64_t width =
      x.size(0) == 0 ? numel_of(Shape(x.shape().begin() + 1, x.shape().end())) : x.numel() / x.size(0);
  const auto elements = [width](std::vector<int64_t> rows) {
    for (int64_t& n : rows) n *= width;
    return rows;
  };
  const auto exchange = [](std::vector<int64_t> sent, std::vector<int64_t> received, int64_t rows) {
    return [=](Stream& s, Communicator& c, const Tensor& v) {
      Shape shape = v.shape();
      shape[0] = rows;
      const Tensor y = like(v, shape);
      c.all_to_all_v(s, y.unowned_view(), received, v.unowned_view(), sent);
      return y;
    };
  };
  const std::vector<int64_t> sent = elements(send_rows), received = elements(receive_rows);
  return collective("all_to_all", comm, x, exchange(sent, received, total(receive_rows)),
                    exchange(received, sent, x.size(0)));
}

}  // namespace sherd::nn
