#include <algorithm>
#include <cstring>

#include <sherd/kernels/device/dtype.h>

#include "comm/fake_nccl_world.h"

namespace sherd::test::fake_nccl {

World& world() {
  static World w;
  return w;
}

void violation(const std::string& text) { world().log.violations.push_back(text); }

void finish(Operation& op) {
  op.done = true;
  if (const auto finished = std::exchange(op.finished, nullptr)) finished();
}

ncclComm_t new_communicator(Clique& clique, int rank, int world_rank) {
  ncclComm& comm = world().communicators.emplace_back();
  comm.clique = &clique;
  comm.rank = rank;
  comm.world_rank = world_rank;
  comm.looks = world().faults.looks;
  ++world().log.made;
  return &comm;
}

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

namespace {

template <class T>
void reduce_as(void* dst, const std::vector<const char*>& sources, size_t begin, size_t count,
               ncclRedOp_t op) {
  std::vector<T> out(count);
  for (size_t i = 0; i < count; ++i) {
    const auto value = [&](size_t s) {
      T v;
      std::memcpy(&v, sources[s] + (begin + i) * sizeof(T), sizeof(T));
      return v;
    };
    T sum = value(0);
    for (size_t s = 1; s < sources.size(); ++s) {
      const T v = value(s);
      if constexpr (std::is_class_v<T>) {
        const float a = static_cast<float>(sum), b = static_cast<float>(v);
        sum = T(op == ncclSum ? a + b : op == ncclMax ? std::max(a, b) : std::min(a, b));
      } else {
        sum = static_cast<T>(op == ncclSum ? sum + v : op == ncclMax ? std::max(sum, v) : std::min(sum, v));
      }
    }
    out[i] = sum;
  }
  if (count > 0) std::memcpy(dst, out.data(), count * sizeof(T));
}

void reduce(ncclDataType_t type, void* dst, const std::vector<const char*>& sources, size_t begin,
            size_t count, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat32:
      return reduce_as<float>(dst, sources, begin, count, op);
    case ncclFloat64:
      return reduce_as<double>(dst, sources, begin, count, op);
    case ncclBfloat16:
      return reduce_as<bf16>(dst, sources, begin, count, op);
    case ncclFloat16:
      return reduce_as<f16>(dst, sources, begin, count, op);
    case ncclInt32:
      return reduce_as<int32_t>(dst, sources, begin, count, op);
    case ncclInt64:
      return reduce_as<int64_t>(dst, sources, begin, count, op);
    default:
      violation("reduction of a type that the tests do not use");
  }
}

bool match(const std::map<int, Op>& ops) {
  const Operation& first = *ops.begin()->second;
  return std::all_of(ops.begin(), ops.end(), [&](const auto& entry) {
    const Operation& o = *entry.second;
    return o.kind == first.kind && o.count == first.count && o.type == first.type && o.op == first.op &&
           o.peer == first.peer;
  });
}
void split(Clique& parent, const std::map<int, Op>& ops) {
  std::map<int, std::vector<std::pair<int, int>>> colors;  // -> key, rank
  for (const auto& [rank, op] : ops) {
    colors[op->color].emplace_back(op->key, rank);
    const auto& pending = parent.members[static_cast<size_t>(rank)]->pending;
    if (std::count_if(pending.begin(), pending.end(), [](const Op& o) { return !o->done; }) > 1)
      violation("split beside other work");
  }
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    Clique& clique = world().cliques.emplace_back();
    for (const auto& [key, rank] : members) {
      const int number = static_cast<int>(clique.members.size());
      const int world_rank = parent.members[static_cast<size_t>(rank)]->world_rank;
      clique.members.push_back(new_communicator(clique, number, world_rank));
      ops.at(rank)->made = clique.members.back();
    }
  }
}

void execute(Clique& clique, const std::map<int, Op>& ops) {
  const Operation& first = *ops.begin()->second;
  const size_t bytes = first.count * bytes_of(first.type);
  std::vector<const char*> sends;
  for (const auto& [rank, op] : ops) sends.push_back(static_cast<const char*>(op->send));
  const auto move = [](void* to, const void* from, size_t n) {
    if (n > 0 && to != from) std::memmove(to, from, n);
  };
  if (first.kind == Kind::split) split(clique, ops);
  if (first.kind == Kind::window) open_windows(clique, ops);
  check_windows(clique, ops);
  if (first.kind == Kind::all_gather)
    for (const auto& [rank, op] : ops)
      for (size_t r = 0; r < sends.size(); ++r)
        move(static_cast<char*>(op->recv) + r * bytes, sends[r], bytes);
  if (first.kind == Kind::broadcast)
    for (const auto& [rank, op] : ops) move(op->recv, sends[static_cast<size_t>(first.peer)], bytes);
  if (first.kind == Kind::reduce_scatter || first.kind == Kind::all_reduce) {
    const bool scatter = first.kind == Kind::reduce_scatter;
    // All results before any is written: buffers may be shared with their own inputs.
    std::vector<std::vector<char>> results;
    for (const auto& [rank, op] : ops) {
      results.emplace_back(bytes);
      reduce(first.type, results.back().data(), sends, scatter ? static_cast<size_t>(rank) * first.count : 0,
             first.count, first.op);
    }
    size_t i = 0;
    for (const auto& [rank, op] : ops) move(op->recv, results[i++].data(), bytes);
  }
  for (const auto& [rank, op] : ops) finish(*op);
}

}  // namespace

void post(ncclComm_t comm, const Op& op) {
  Clique& clique = *comm->clique;
  comm->pending.push_back(op);
  if (comm->elsewhere >= 0) return world().elsewhere(comm, op);
  if (++comm->operations > world().faults.error_after && comm->world_rank == world().faults.error_on) return;
  if (comm->world_rank == world().faults.silent && op->kind != Kind::init &&
      (comm->operations > 0 || clique.members.size() == 1))
    return;
  if (op->kind == Kind::send || op->kind == Kind::recv) {
    const bool sends = op->kind == Kind::send;
    auto& [out, in] = clique.mail[sends ? std::pair(comm->rank, op->peer) : std::pair(op->peer, comm->rank)];
    (sends ? out : in).push_back(op);
    while (!out.empty() && !in.empty()) {
      if (out.front()->count != in.front()->count || out.front()->type != in.front()->type) return;  // hangs
      std::memmove(in.front()->recv, out.front()->send, in.front()->count * bytes_of(in.front()->type));
      finish(*in.front());
      finish(*out.front());
      in.pop_front();
      out.pop_front();
    }
    return;
  }
  const int64_t round = comm->round++;
  auto& ops = clique.rounds[round];
  ops[comm->rank] = op;
  if (ops.size() == clique.members.size() && match(ops)) {
    execute(clique, ops);
    clique.rounds.erase(round);
  }
}

}  // namespace sherd::test::fake_nccl
