#include "nccl_processes.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fake_nccl_world.h"
#include "strict.h"

namespace cuda_host::processes {
namespace {

using namespace sherd::test::fake_nccl;

/// One end of a socket. What is sent goes out on a thread of its own, so that send() never waits for the other end.
class Line {
 public:
  explicit Line(int socket) : socket_(socket), sender_([this] { run(); }) {}
  ~Line() {
    ::shutdown(socket_, SHUT_RDWR);
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    sender_.join();
    ::close(socket_);
  }
  void close() { ::shutdown(socket_, SHUT_RDWR); }

  void send(std::string bytes) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(bytes));
    }
    changed_.notify_all();
  }
  /// Returns false when the other end is closed.
  bool receive(void* data, size_t bytes) {
    for (auto* to = static_cast<char*>(data); bytes > 0;) {
      const ssize_t got = ::recv(socket_, to, bytes, 0);
      if (got <= 0) return false;
      to += got;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
      if (closed_) return;
      const std::string bytes = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      for (size_t done = 0; done < bytes.size();) {
        const ssize_t sent = ::send(socket_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
        if (sent <= 0) return;
        done += static_cast<size_t>(sent);
      }
      lock.lock();
    }
  }

  const int socket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> waiting_;
  bool closed_ = false;
  std::thread sender_;
};

enum class Say { join, issue, operate, abort };

/// What a rank says, and before `send_bytes` of data. Communicators have the world's process's numbers.
struct Request {
  Say say{};
  int communicator = 0;
  uint64_t id = 0;
  Kind kind{};
  int type = 0, op = 0, peer = 0, color = 0, key = 0;
  size_t count = 0, send_bytes = 0, recv_bytes = 0;
};
/// What comes back when an operation is done, and before `ranks` world ranks of a split's child and `bytes` of data.
struct Answer {
  uint64_t id = 0;
  int child = -1;
  size_t ranks = 0, bytes = 0;
};

template <class T>
std::string bytes_of_value(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

sockaddr_un address_of(const std::string& name, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A first byte of zero: a name without a file.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}
int open_socket() {
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) throw std::runtime_error("imitated NCCL: no socket");
  return made;
}

/// The world of all ranks, in the process of rank 0.
class Server {
 public:
  explicit Server(const std::string& name) : socket_(open_socket()) {
    world();  // ends after this
    socklen_t size = 0;
    const sockaddr_un address = address_of(name, size);
    if (::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(socket_, 64) != 0)
      throw std::runtime_error("imitated NCCL: no address for the world");
    acceptor_ = std::thread([this] {
      for (int peer = 0; (peer = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        std::lock_guard lock(mutex_);
        Rank& rank = ranks_.emplace_back(peer);
        rank.thread = std::thread([this, &rank] {
          serve(rank);
          ++ended_;
        });
      }
    });
  }
  ~Server() {
    ::shutdown(socket_, SHUT_RDWR);
    acceptor_.join();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (ended_ < ranks_.size() && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (Rank& rank : ranks_) rank.line.close();
    for (Rank& rank : ranks_) rank.thread.join();
    ::close(socket_);
  }

 private:
  struct Rank {
    explicit Rank(int socket) : line(socket) {}
    Line line;
    int number = 0;
    std::vector<ncclComm_t> communicators;  // under the world's mutex
    std::thread thread;
  };

  void serve(Rank& rank) {
    for (Request r; rank.line.receive(&r, sizeof r);) {
      const auto send = std::make_shared<std::string>(r.send_bytes, '\0');
      if (!rank.line.receive(send->data(), send->size())) return;
      if (r.say == Say::abort) {
        api_of_world().comm_abort(rank.communicators.at(static_cast<size_t>(r.communicator)));
        continue;
      }
      std::lock_guard lock(world().mutex);
      if (r.say == Say::join) join(rank, r);
      const ncclComm_t comm = rank.communicators.at(static_cast<size_t>(r.communicator));
      if (r.say == Say::issue) {
        compare_order(rank, comm);
        continue;
      }
      operate(rank, comm, r, send);
    }
  }

  static const sherd::nccl::NcclApi& api_of_world() { return sherd::test::fake_nccl::api(); }

  void join(Rank& rank, const Request& r) {
    rank.number = r.peer;
    if (world_ == nullptr) {
      world_ = &world().cliques.emplace_back();
      world_->members.resize(r.count);
    }
    ncclComm_t comm = new_communicator(*world_, rank.number, rank.number);
    world_->members[static_cast<size_t>(rank.number)] = comm;
    rank.communicators.push_back(comm);
  }

  /// Ranks of this process's world stand for GPUs, with numbers below zero.
  static void compare_order(const Rank& rank, ncclComm_t comm) {
    const auto device = [](int number) { return -1 - number; };
    std::vector<int> members;
    for (const ncclComm* member : comm->clique->members) members.push_back(device(member->world_rank));
    const strict::Call call(device(rank.number),
                            "a collective of communicator " + std::to_string(comm->clique->members.size()),
                            comm->clique, members);
  }

  static void operate(Rank& rank, ncclComm_t comm, const Request& r, std::shared_ptr<std::string> send) {
    const auto recv = std::make_shared<std::string>(r.recv_bytes, '\0');
    const auto op = std::make_shared<Operation>();
    // A window is made by each rank for itself, when all are there.
    op->kind = r.kind == Kind::window ? Kind::init : r.kind;
    op->send = send->data();
    op->recv = recv->data();
    op->count = r.count;
    op->type = static_cast<ncclDataType_t>(r.type);
    op->op = static_cast<ncclRedOp_t>(r.op);
    op->peer = r.say == Say::join ? -1 : r.peer;
    op->color = r.color;
    op->key = r.key;
    op->finished = [&rank, id = r.id, send = std::move(send), recv, raw = op.get()] {
      Answer answer{.id = id, .bytes = recv->size()};
      std::string ranks;
      if (raw->made != nullptr) {
        answer.child = static_cast<int>(rank.communicators.size());
        rank.communicators.push_back(raw->made);
        for (const ncclComm* member : raw->made->clique->members) ranks += bytes_of_value(member->world_rank);
        answer.ranks = raw->made->clique->members.size();
      }
      rank.line.send(bytes_of_value(answer) + ranks + *recv);
    };
    std::erase_if(comm->pending, [](const Op& o) { return o->done; });
    comm->dead ? finish(*op) : post(comm, op);
  }

  const int socket_;
  Clique* world_ = nullptr;
  std::mutex mutex_;
  std::list<Rank> ranks_;
  std::atomic<size_t> ended_ = 0;
  std::thread acceptor_;
};

/// A rank's way to the world. Its functions are called under this process's world's mutex.
class Client {
 public:
  explicit Client(const std::string& name) : line_(connected(name)) {
    world().elsewhere = [](ncclComm_t comm, const Op& op) { client(nullptr).operate(comm, op); };
    reader_ = std::thread([this] { read(); });
  }
  ~Client() {
    line_.close();
    reader_.join();
  }

  void operate(ncclComm_t comm, const Op& op) {
    const Operation& o = *op;
    const size_t bytes = o.count * bytes_of(o.type), all = bytes * comm->clique->members.size();
    Request r{.say = o.kind == Kind::init ? Say::join : Say::operate,
              .communicator = comm->elsewhere,
              .id = ++ids_,
              .kind = o.kind,
              .type = o.type,
              .op = o.op,
              .peer = o.peer,
              .color = o.color,
              .key = o.key,
              .count = o.count};
    switch (o.kind) {
      case Kind::all_gather:
        r.send_bytes = bytes, r.recv_bytes = all;
        break;
      case Kind::reduce_scatter:
        r.send_bytes = all, r.recv_bytes = bytes;
        break;
      case Kind::all_reduce:
        r.send_bytes = r.recv_bytes = bytes;
        break;
      case Kind::broadcast:
        r.send_bytes = comm->rank == o.peer ? bytes : 0, r.recv_bytes = bytes;
        break;
      case Kind::send:
        r.send_bytes = bytes;
        break;
      case Kind::recv:
        r.recv_bytes = bytes;
        break;
      default:
        break;
    }
    waiting_.emplace(r.id, std::pair(comm, op));
    line_.send(bytes_of_value(r) + std::string(static_cast<const char*>(o.send), r.send_bytes));
  }
  void say(Say what, ncclComm_t comm) {
    line_.send(bytes_of_value(Request{.say = what, .communicator = comm->elsewhere}));
  }

  /// The process's only one.
  static Client& client(const char* name) {
    static Client c(name);
    return c;
  }

 private:
  static int connected(const std::string& name) {
    world();  // ends after this
    const int made = open_socket();
    socklen_t size = 0;
    const sockaddr_un address = address_of(name, size);
    if (::connect(made, reinterpret_cast<const sockaddr*>(&address), size) != 0)
      throw std::runtime_error("imitated NCCL: the process of rank 0 does not answer");
    return made;
  }

  void read() {
    for (Answer a; line_.receive(&a, sizeof a);) {
      std::vector<int> ranks(a.ranks);
      std::string data(a.bytes, '\0');
      if (!line_.receive(ranks.data(), ranks.size() * sizeof(int)) ||
          !line_.receive(data.data(), data.size()))
        return;
      std::lock_guard lock(world().mutex);
      const auto at = waiting_.find(a.id);
      if (at == waiting_.end()) continue;
      const auto [comm, op] = at->second;
      waiting_.erase(at);
      if (op->done) continue;  // aborted
      if (!data.empty()) std::memcpy(op->recv, data.data(), data.size());
      if (a.child >= 0) op->made = child_of(comm, a.child, ranks);
      if (op->kind == Kind::window) {
        comm->windows.emplace(static_cast<const char*>(op->send), op->count);
        *op->window = reinterpret_cast<sherd::nccl::Window>(const_cast<void*>(op->send));
      }
      finish(*op);
    }
  }

  static ncclComm_t child_of(ncclComm_t parent, int number, const std::vector<int>& ranks) {
    Clique& clique = world().cliques.emplace_back();
    clique.members.resize(ranks.size());
    for (size_t r = 0; r < ranks.size(); ++r)
      if (ranks[r] == parent->world_rank) {
        clique.members[r] = new_communicator(clique, static_cast<int>(r), parent->world_rank);
        clique.members[r]->elsewhere = number;
        return clique.members[r];
      }
    return nullptr;
  }

  Line line_;
  uint64_t ids_ = 0;
  std::map<uint64_t, std::pair<ncclComm_t, Op>> waiting_;
  std::thread reader_;
};

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::string name = "sherd-imitated-nccl-" + std::to_string(::getpid());
  static const Server server(name);
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

ncclResult_t comm_init_rank_config(ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  Client::client(id.internal);
  std::lock_guard lock(world().mutex);
  Clique& clique = world().cliques.emplace_back();
  clique.members.resize(static_cast<size_t>(size));
  const ncclComm_t comm = clique.members[static_cast<size_t>(rank)] = new_communicator(clique, rank, rank);
  comm->elsewhere = 0;
  *out = comm;
  post(comm, std::make_shared<Operation>(
                 Operation{.kind = Kind::init, .count = static_cast<size_t>(size), .peer = rank}));
  comm->in_progress = true;
  return ncclInProgress;
}

ncclResult_t comm_abort(ncclComm_t comm) {
  Client::client(nullptr).say(Say::abort, comm);
  return sherd::test::fake_nccl::api().comm_abort(comm);
}

}  // namespace

bool on() {
  const char* const size = std::getenv("WORLD_SIZE");
  return size != nullptr && std::atoi(size) > 1;
}

const sherd::nccl::NcclApi& api() {
  static const sherd::nccl::NcclApi table = [] {
    sherd::nccl::NcclApi all = sherd::test::fake_nccl::api();
    all.get_unique_id = get_unique_id;
    all.comm_init_rank_config = comm_init_rank_config;
    all.comm_abort = comm_abort;
    return all;
  }();
  return table;
}

void issued(ncclComm_t comm) { Client::client(nullptr).say(Say::issue, comm); }

}  // namespace cuda_host::processes
