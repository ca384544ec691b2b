#include <sherd/train/replica_check.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <sherd/fsdp/group.h>
#include <sherd/fsdp/runtime.h>
#include <sherd/kernels/ops/ops.h>

namespace sherd {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// What one rank holds of one parameter. Trivial, since it travels as words.
struct Held {
  int64_t parameter;  // position in named_parameters()
  uint64_t elements;  // digest of which elements of the whole parameter it is
  uint64_t bits;      // of what they are
};
constexpr int64_t kWords = 3;
static_assert(sizeof(Held) == kWords * sizeof(int64_t));

uint64_t digest_of(const std::vector<Box>& boxes, bool whole) {
  std::vector<int64_t> words = {whole ? 1 : 0};
  for (const Box& b : boxes) {
    words.insert(words.end(), b.offset.begin(), b.offset.end());
    words.insert(words.end(), b.size.begin(), b.size.end());
  }
  return XXH3_64bits(words.data(), words.size() * sizeof(int64_t));
}

class Reader {
 public:
  explicit Reader(Device& device)
      : stream_(device.compute()),
        piece_(Tensor::host(device, {kPieceBytes}, DType::u8, MemoryClass::scratch, "replica check")),
        state_(XXH3_createState()) {}

  uint64_t checksum(const Tensor& tensor) {
    XXH3_64bits_reset(state_.get());
    const Tensor bytes = tensor.bytes();
    for (int64_t at = 0; at < bytes.numel(); at += kPieceBytes) {
      const int64_t n = std::min(kPieceBytes, bytes.numel() - at);
      ops::copy(stream_, piece_.flat(0, n), bytes.flat(at, at + n));
      stream_.synchronize();
      XXH3_64bits_update(state_.get(), piece_.raw(), static_cast<size_t>(n));
    }
    return XXH3_64bits_digest(state_.get());
  }

 private:
  Stream& stream_;
  Tensor piece_;
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

// Weights rest on more ranks than their masters: only the weights show whether those ranks agree.
bool rests_wider(const ParamGroup& group) { return group.axes().weights_split != group.axes().state_split; }

std::vector<Held> held_here(ModuleBase& root) {
  ShardRuntime& runtime = runtime_of(root);
  Reader reader(runtime.device());
  std::vector<Held> all;
  std::map<std::pair<const ParamGroup*, int>, int64_t> numbers;
  int64_t number = 0;
  for (auto& [name, p] : root.named_parameters()) {
    numbers[{&p.group(), p.index_in_group()}] = number;
    if (!p.group().replicated() && !rests_wider(p.group()) && p.shard().numel() > 0)
      all.push_back({number, digest_of(p.global_boxes(p.shard_range()), false), reader.checksum(p.shard())});
    ++number;
  }
  for (auto& unit : runtime.units()) {
    const std::vector<Parameter>& params = unit->params();
    const auto wide = [](const Parameter& p) { return !p.group().replicated() && rests_wider(p.group()); };
    if (std::none_of(params.begin(), params.end(), wide)) continue;
    unit->unshard();
    unit->wait();
    for (const Parameter& p : params) {
      if (!wide(p)) continue;
      const int64_t elements = p.tensor_shard() ? held_elements(p.shape(), *p.tensor_shard()) : p.numel();
      if (elements == 0) continue;
      const std::vector<Box> boxes = p.global_boxes({ParamIndex(0), ParamIndex(elements)});
      all.push_back({numbers.at({&p.group(), p.index_in_group()}), digest_of(boxes, true),
                     reader.checksum(p.data().flat(0, elements))});
    }
    unit->reshard();
  }
  return all;
}

// Of every rank, in rank order.
std::vector<std::vector<Held>> gather(Communicator& world, const std::vector<Held>& mine) {
  Device& device = world.device();
  Stream& stream = device.compute();
  const auto memory = [&](int64_t n) {
    return Tensor::empty(device, {n}, DType::i64, MemoryClass::message, "replica check");
  };
  const auto ranks = static_cast<size_t>(world.size());
  const int64_t own = static_cast<int64_t>(mine.size()) * kWords;
  std::vector<int64_t> counts(ranks);
  const Tensor size = memory(1), sizes = memory(world.size());
  ops::copy_from_host(stream, size, &own, sizeof own);
  world.all_gather(stream, sizes, size);
  ops::copy_to_host(stream, counts.data(), sizes);
  int64_t total = 0;
  for (const int64_t n : counts) total += n;
  const Tensor send = memory(own), received = memory(total);
  ops::copy_from_host(stream, send, mine.data(), send.nbytes());
  world.all_gather_v(stream, received, counts, send);
  stream.synchronize();
  std::vector<std::vector<Held>> all(ranks);
  int64_t at = 0;
  for (size_t r = 0; r < ranks; ++r) {
    all[r].resize(static_cast<size_t>(counts[r] / kWords));
    ops::copy_to_host(stream, all[r].data(), received.flat(at, at + counts[r]));
    at += counts[r];
  }
  return all;
}

// Of the holders of one piece, by their bits.
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

ReplicaCheck check_replicas(ModuleBase& root) {
  ShardRuntime& runtime = runtime_of(root);
  const auto all = gather(*runtime.mesh().world(), held_here(root));
  std::map<std::pair<int64_t, uint64_t>, std::map<uint64_t, std::vector<int>>> pieces;
  for (size_t r = 0; r < all.size(); ++r)
    for (const Held& h : all[r]) pieces[{h.parameter, h.elements}][h.bits].push_back(static_cast<int>(r));
  const auto params = root.named_parameters();
  ReplicaCheck check;
  for (auto& [piece, by_bits] : pieces) {
    if (by_bits.size() == 1 && by_bits.begin()->second.size() == 1) continue;
    ++check.compared;
    if (by_bits.size() == 1) continue;
    const auto& [name, p] = params[static_cast<size_t>(piece.first)];
    ReplicaDifference d{
        .parameter = name, .unit = p.group().unit_of(p.index_in_group()), .ranks = {}, .majority = {}};
    judge(by_bits, d);
    check.differences.push_back(std::move(d));
  }
  return check;
}

std::string ReplicaCheck::describe() const {
  if (differences.empty()) return "";
  constexpr size_t kMost = 4;
  std::vector<std::string> said;
  for (const ReplicaDifference& d : differences) {
    if (said.size() == kMost) break;
    const std::string what = fmt::format("{} (unit '{}')", d.parameter, d.unit);
    said.push_back(d.majority.empty() ? fmt::format("{}: {} differ, and no majority tells which is right",
                                                    what, in_words(d.ranks))
                                      : fmt::format("{}: {} differ{} from {}", what, in_words(d.ranks),
                                                    d.ranks.size() == 1 ? "s" : "", in_words(d.majority)));
  }
  const size_t more = differences.size() - said.size();
  return fmt::format("{}{}", fmt::join(said, "; "),
                     more > 0 ? fmt::format("; and {} more pieces", more) : "");
}

}  // namespace sherd
