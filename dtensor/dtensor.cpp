#include <sherd/dtensor/dtensor.h>

#include <algorithm>
#include <list>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/comm/core/communicator.h>
#include <sherd/dtensor/detail/even_shard.h>

namespace sherd {
namespace {}  // namespace

DTensor::DTensor(DeviceMesh mesh, Shape global, std::vector<Placement> placements, Tensor local)
    : mesh_(std::move(mesh)),
      global_(std::move(global)),
      placements_(std::move(placements)),
      local_(std::move(local)) {}

DTensor DTensor::from_local(DeviceMesh mesh, Shape global, std::vector<Placement> placements, Tensor local) {
  check_placements(mesh, global, placements);
  if (!local.defined()) throw InvalidArgument("DTensor::from_local: the local tensor is undefined");
  const Shape wanted = even_shard(mesh, global, placements).size;
  if (local.shape() != wanted)
    throw ShapeMismatch(
        fmt::format("DTensor::from_local: global shape {} with placements {} on mesh {} makes the "
                    "local shape {} on rank {}, but the tensor given has {}",
                    to_string(global), to_string(placements), mesh.describe(), to_string(wanted),
                    mesh.world()->rank(), to_string(local.shape())));
  return DTensor(std::move(mesh), std::move(global), std::move(placements), std::move(local));
}

DTensor DTensor::from_layout(DeviceMesh mesh, std::vector<std::string> over,
                             std::shared_ptr<const ShardLayout> layout, int param, Tensor local) {
  if (!layout) throw InvalidArgument("DTensor::from_layout: the layout is null");
  if (param < 0 || param >= static_cast<int>(layout->params().size()))
    throw InvalidArgument(fmt::format("DTensor::from_layout: parameter {} of a layout with {} parameters",
                                      param, layout->params().size()));
  int parts = 1, rank = 0;
  std::vector<Placement> placements(mesh.dims().size(), Replicate());
  for (size_t i = 0; i < over.size(); ++i) {
    if (std::find(over.begin(), over.begin() + i, over[i]) != over.begin() + i)
      throw InvalidArgument(fmt::format("DTensor::from_layout: mesh dimension '{}' is named twice", over[i]));
    parts *= mesh.size(over[i]);
    rank = rank * mesh.size(over[i]) + mesh.coordinate(over[i]);
    for (size_t d = 0; d < placements.size(); ++d)
      if (mesh.dims()[d].name == over[i]) placements[d] = Shard(0);
  }
  if (parts != layout->world())
    throw InvalidArgument(
        fmt::format("DTensor::from_layout: the layout is for {} ranks, but the mesh dimensions named "
                    "have {} (mesh {})",
                    layout->world(), parts, mesh.describe()));
  const LayoutParam& p = layout->params()[param];
  const ParamRange piece = layout->piece(ParamId(param), RankId(rank));
  if (!local.defined() || local.numel() != piece.size())
    throw ShapeMismatch(
        fmt::format("DTensor::from_layout: rank {} holds elements [{}, {}) of '{}' {}, but the tensor "
                    "given has {}",
                    rank, piece.begin.value, piece.end.value, p.name, to_string(p.shape),
                    local.defined() ? std::to_string(local.numel()) : "no memory"));
  if (over.empty()) {
    const Shape shape = p.shape;
    return from_local(std::move(mesh), shape, std::move(placements), local.view(shape));
  }
  DTensor t(std::move(mesh), p.shape, std::move(placements), local.flat());
  t.layout_ = std::move(layout);
  t.over_ = std::move(over);
  t.param_ = param;
  t.layout_rank_ = rank;
  return t;
}

DTensor DTensor::distribute(Stream& stream, DeviceMesh mesh, const Tensor& full,
                            std::vector<Placement> placements) {
  std::vector<Placement> whole(mesh.dims().size(), Replicate());
  return from_local(std::move(mesh), full.shape(), std::move(whole), full)
      .redistribute(stream, std::move(placements));
}

Box DTensor::local_box() const {
  if (!ragged()) return even_shard(mesh_, global_, placements_);
  const Shape shape = at_least_1d(global_);
  const ParamRange piece = layout_->piece(ParamId(param_), RankId(layout_rank_));
  const int64_t width = row_size(shape);
  Box box{Shape(shape.size(), 0), shape};
  box.size[0] = 0;
  if (piece.empty()) {
    box.offset[0] = shape[0];
    return box;
  }
  if (piece.begin.value % width != 0 || piece.end.value % width != 0)
    throw NotSupported(
        fmt::format("'{}' {}: rank {} holds elements [{}, {}), which are not whole rows of {}; use "
                    "boxes()",
                    layout_->params()[param_].name, to_string(global_), layout_rank_, piece.begin.value,
                    piece.end.value, width));
  box.offset[0] = piece.begin.value / width;
  box.size[0] = piece.size() / width;
  return box;
}

Shape DTensor::local_shape() const { return local_box().size; }
Shape DTensor::global_offset() const { return local_box().offset; }

std::vector<Box> DTensor::boxes() const {
  if (ragged()) return layout_->boxes(ParamId(param_), RankId(layout_rank_));
  if (local_.numel() == 0) return {};
  const Box box = local_box();
  return {global_.empty() ? Box{{0}, {1}} : box};
}

Tensor DTensor::full_tensor(Stream& stream) const {
  const Purpose entry = Purpose::entry("DTensor::full_tensor");
  std::list<Serving> serving;
  for (const MeshDim& d : mesh_.dims()) serving.emplace_back(*mesh_.comm(d.name), entry);
  if (!ragged()) return redistribute(stream, std::vector<Placement>(placements_.size(), Replicate())).local();
  follow_compute(stream);
  std::vector<int64_t> counts;
  for (int r = 0; r < layout_->world(); ++r)
    counts.push_back(layout_->piece(ParamId(param_), RankId(r)).size());
  const Tensor full =
      Tensor::empty(local_.device(), global_, local_.dtype(), MemoryClass::message, "redistribute");
  const auto comm = mesh_.flatten(over_);
  serving.emplace_back(*comm, entry);
  comm->all_gather_v(stream, full.flat(), counts, local_);
  return full;
}

}  // namespace sherd
