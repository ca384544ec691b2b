#include <sherd/train/guards/replica_check.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <sherd/comm/core/require_equal.h>
#include <sherd/fsdp/group.h>
#include <sherd/fsdp/runtime.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>

namespace sherd {
namespace {

constexpr int64_t kComparedBytes = int64_t{4} << 20;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// A tensor of which other ranks hold copies. The list of them has the same order and length on every rank.
struct Copied {
  std::string what, name, unit;
  std::pair<const Communicator*, std::vector<std::string>>
      holders;                            // a mesh, and its dimensions that repeat it
  int count;                              // of holders
  std::vector<ParamGroup::Piece> pieces;  // that this rank holds; may be empty
  uint64_t cut = 0;                       // which piece of a larger parameter they are of
};

// Digests of a tensor, or of all tensors with the same holders.
struct Digests {
  uint64_t elements = 0;  // which elements of it a rank holds; 0: none
  uint64_t bits = 0;      // their values
};

// Returns the piece of each matrix here, at its place along the stack.
std::vector<ParamGroup::Piece> pieces_of(const OwnedState& s) {
  std::vector<ParamGroup::Piece> pieces;
  if (s.matrices.empty()) return pieces;
  const int64_t n = s.local.numel() / static_cast<int64_t>(s.matrices.size());
  for (size_t i = 0; i < s.matrices.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * n, first = s.matrices[i] * n;
    pieces.push_back({{ParamIndex(first), ParamIndex(first + n)}, s.local.flat(at, at + n)});
  }
  return pieces;
}

std::vector<Copied> copied_tensors(ModuleBase& root, const std::vector<const Optimizer*>& optimizers) {
  std::vector<Copied> all;
  const auto add_held = [&](std::string what, const Parameter& p, std::vector<std::string> dims, int count,
                            std::vector<ParamGroup::Piece> pieces, uint64_t cut) {
    const ParamGroup& g = p.group();
    if (g.replicated() || count == 1) return;
    all.push_back({.what = std::move(what),
                   .name = p.name(),
                   .unit = g.unit_of(p.index_in_group()),
                   .holders = {g.mesh().world().get(), std::move(dims)},
                   .count = count,
                   .pieces = std::move(pieces),
                   .cut = cut});
  };
  const auto add = [&](std::string what, const Parameter& p, const std::vector<std::string>& split,
                       std::vector<ParamGroup::Piece> pieces) {
    Holders h = p.group().axes().holders_of(split, p.tensor_shard());
    add_held(std::move(what), p, std::move(h.dims), h.count, std::move(pieces),
             p.tensor_shard() ? static_cast<uint64_t>(p.tensor_shard()->index) : 0);
  };
  for (auto& [name, p] : root.named_parameters()) {
    const ParamGroup& g = p.group();
    add("weights", p, g.axes().weights_split, g.resting(p.index_in_group()));
    const char* const masters = g.plan().master == Master::f32 ? "fp32 master weights" : "master weights";
    if (g.has_masters()) add(masters, p, g.axes().state_split, {{p.shard_range(), p.shard()}});
    if (const Tensor low = p.shard_low(); low.defined())
      add("low halves of master weights", p, g.axes().state_split, {{p.shard_range(), low}});
  }
  for (const Optimizer* optimizer : optimizers)
    for (const StateTensor& s : optimizer->state()) {
      const auto& split = s.param.group().axes().state_split;
      add(fmt::format("optimizer state '{}'", s.key), s.param, split, {{s.param.shard_range(), s.local}});
      if (s.scales.defined())
        add(fmt::format("scales of optimizer state '{}'", s.key), s.param, split,
            {{blocks_of(s.param.shard_range(), s.block), s.scales}});
    }
  for (const Optimizer* optimizer : optimizers)
    for (const OwnedState& s : optimizer->owned_state()) {
      int count = 1;
      for (const std::string& dim : s.repeated) count *= s.param.group().mesh().size(dim);
      add_held(fmt::format("optimizer state '{}'", s.key), s.param, s.repeated, count, pieces_of(s), 0);
    }
  Communicator& world = *runtime_of(root).mesh().world();
  if (world.size() == 1) return all;
  const auto add_whole = [&](std::string what, std::string name, std::string unit, const Tensor& values) {
    all.push_back({.what = std::move(what),
                   .name = std::move(name),
                   .unit = std::move(unit),
                   .holders = {&world, {}},
                   .count = world.size(),
                   .pieces = {{{ParamIndex(0), ParamIndex(values.numel())}, values}}});
  };
  for (const Optimizer* optimizer : optimizers)
    for (const StateCounter& c : optimizer->counters())
      add_whole(fmt::format("optimizer counter '{}'", c.key), c.param.name(),
                c.param.group().unit_of(c.param.index_in_group()), c.value);
  for (auto& [name, b] : root.named_buffers())
    if (!b.per_rank()) add_whole("buffer", name, "", b.data());
  return all;
}

class Reader {
 public:
  explicit Reader(Device& device) : stream_(device.compute()), state_(XXH3_createState()) {
    stream_.synchronize();
    if (device.kind() != DeviceKind::cpu)
      host_ = Tensor::host(device, {kComparedBytes}, DType::u8, MemoryClass::scratch, "replica check");
  }

  Digests digests(const Copied& tensor) {
    Digests d;
    XXH3_64bits_reset(state_.get());
    for (const ParamGroup::Piece& piece : tensor.pieces) {
      if (piece.range.empty()) continue;
      d.elements = hash64(d.elements ^ tensor.cut, {});
      for (const int64_t end : {piece.range.begin.value, piece.range.end.value})
        d.elements = hash64(d.elements ^ static_cast<uint64_t>(end), {}) | 1;
      read(piece.values.bytes());
    }
    d.bits = XXH3_64bits_digest(state_.get());
    return d;
  }

 private:
  void read(const Tensor& bytes) {
    if (!host_.defined()) {
      XXH3_64bits_update(state_.get(), bytes.raw(), static_cast<size_t>(bytes.numel()));
      return;
    }
    for (int64_t at = 0; at < bytes.numel(); at += kComparedBytes) {
      const int64_t n = std::min(kComparedBytes, bytes.numel() - at);
      ops::copy(stream_, host_.flat(0, n), bytes.flat(at, at + n));
      stream_.synchronize();
      XXH3_64bits_update(state_.get(), host_.raw(), static_cast<size_t>(n));
    }
  }

  Stream& stream_;
  Tensor host_;  // undefined where the device's memory is the host's
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

// Tensors with the same holders as one: a column of what is exchanged.
struct Column {
  Digests mine;
  int holders = 0;
};

std::vector<Column> by_holders(const std::vector<Copied>& tensors, const std::vector<Digests>& mine) {
  std::map<std::pair<const Communicator*, std::vector<std::string>>, size_t> places;
  std::vector<Column> columns;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t at = places.emplace(tensors[i].holders, columns.size()).first->second;
    if (at == columns.size()) columns.push_back({{}, tensors[i].count});
    if (mine[i].elements == 0) continue;
    Digests& all = columns[at].mine;
    all.elements = (hash64(all.elements ^ mine[i].elements, {}) + i) | 1;
    all.bits = hash64(all.bits ^ mine[i].bits, {}) + i;
  }
  return columns;
}

// Ranks that hold the same elements, by those elements and by their bits.
using Holdings = std::map<uint64_t, std::map<uint64_t, std::vector<int>>>;

// Gathers the holdings of each column, over all ranks. One all-gather.
std::vector<Holdings> gather_holdings(Communicator& world, const std::vector<Digests>& mine) {
  std::vector<uint64_t> words;
  for (const Digests& d : mine) words.insert(words.end(), {d.elements, d.bits});
  const std::vector<uint64_t> all = gather_values(world, world.device().compute(), words);
  std::vector<Holdings> columns(mine.size());
  for (size_t at = 0; at < all.size(); at += 2)
    if (all[at] != 0)
      columns[at % words.size() / 2][all[at]][all[at + 1]].push_back(static_cast<int>(at / words.size()));
  return columns;
}

bool agree(const Holdings& holdings, int holders) {
  return std::all_of(holdings.begin(), holdings.end(), [&](const auto& h) {
    return h.second.size() == 1 && static_cast<int>(h.second.begin()->second.size()) == holders;
  });
}

// Judges the holders of the same elements, by their bits.
void judge(const std::map<uint64_t, std::vector<int>>& by_bits, ReplicaDifference& into) {
  size_t holders = 0;
  const std::vector<int>* most = nullptr;
  for (auto& [bits, ranks] : by_bits) {
    holders += ranks.size();
    if (most == nullptr || ranks.size() > most->size()) most = &ranks;
  }
  const bool decided = 2 * most->size() > holders;
  for (auto& [bits, ranks] : by_bits) {
    auto& to = decided && &ranks == most ? into.majority : into.ranks;
    to.insert(to.end(), ranks.begin(), ranks.end());
  }
  std::sort(into.ranks.begin(), into.ranks.end());
}

std::string in_words(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

ReplicaCheck check_replicas(ModuleBase& root, const std::vector<const Optimizer*>& optimizers) {
  ShardRuntime& runtime = runtime_of(root);
  for (auto& unit : runtime.units()) {
    unit->sync();
    unit->wait();
  }
  const std::vector<Copied> tensors = copied_tensors(root, optimizers);
  ReplicaCheck check{.compared = static_cast<int64_t>(tensors.size()), .differences = {}};
  std::vector<Digests> mine, folded;
  {
    Reader reader(runtime.device());
    for (const Copied& t : tensors) mine.push_back(reader.digests(t));
  }
  const std::vector<Column> columns = by_holders(tensors, mine);
  for (const Column& c : columns) folded.push_back(c.mine);
  Communicator& world = *runtime.mesh().world();
  const std::vector<Holdings> found = gather_holdings(world, folded);
  bool same = true;
  for (size_t i = 0; i < columns.size(); ++i) same = same && agree(found[i], columns[i].holders);
  if (same) return check;
  const std::vector<Holdings> named = gather_holdings(world, mine);
  for (size_t i = 0; i < tensors.size(); ++i)
    for (auto& [elements, by_bits] : named[i]) {
      if (by_bits.size() == 1) continue;
      ReplicaDifference d{.parameter = tensors[i].name,
                          .unit = tensors[i].unit,
                          .ranks = {},
                          .majority = {},
                          .what = tensors[i].what};
      judge(by_bits, d);
      check.differences.push_back(std::move(d));
    }
  return check;
}

ReplicaCheck check_replicas(ModuleBase& root, const Optimizer* optimizer) {
  return check_replicas(root,
                        optimizer == nullptr ? std::vector<const Optimizer*>{} : std::vector{optimizer});
}

std::string ReplicaCheck::describe() const {
  if (differences.empty()) return "";
  constexpr size_t kMost = 4;
  std::vector<std::string> said;
  for (const ReplicaDifference& d : differences) {
    if (said.size() == kMost) break;
    const std::string what = d.unit.empty()
                                 ? fmt::format("{} '{}'", d.what, d.parameter)
                                 : fmt::format("{} of {} (unit '{}')", d.what, d.parameter, d.unit);
    said.push_back(d.majority.empty() ? fmt::format("{}: {} differ, and no majority tells which is right",
                                                    what, in_words(d.ranks))
                                      : fmt::format("{}: {} differ{} from {}", what, in_words(d.ranks),
                                                    d.ranks.size() == 1 ? "s" : "", in_words(d.majority)));
  }
  const size_t more = differences.size() - said.size();
  return fmt::format("{}{}", fmt::join(said, "; "),
                     more > 0 ? fmt::format("; and {} more tensors", more) : "");
}

}  // namespace sherd
