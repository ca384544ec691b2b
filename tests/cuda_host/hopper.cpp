#include "hopper.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "fake.h"

namespace cuda_host::hopper {
namespace {

// ---- barriers

/// Content of an mbarrier's 8 bytes of shared memory.
struct Barrier {
  static constexpr uint8_t kMade = 0x5a;
  uint8_t made, phase, arrivals, missing;  // phase: the parity of the one that runs
  int32_t bytes;                           // announced and not yet come, or come before they were announced
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));

Barrier load(const uint64_t* p) {
  Barrier b;
  std::memcpy(&b, p, sizeof b);
  if (b.made != Barrier::kMade) misuse("a barrier is used before it is initialised");
  return b;
}
/// Ends the phase when nothing is missing.
void store(uint64_t* p, Barrier b) {
  if (b.missing == 0 && b.bytes == 0) {
    b.phase ^= 1;
    b.missing = b.arrivals;
  }
  std::memcpy(p, &b, sizeof b);
}

struct NamedBarrier {
  uint64_t block = 0, phase = 0;
  int arrived = 0, threads = 0;
};
thread_local NamedBarrier named[16];

// ---- copies

/// Content of a CUtensorMap.
struct Map {
  static constexpr uint32_t kMade = 0x7e4507a9;
  uint32_t made;
  uint32_t box[3];
  uint64_t sizes[3], strides[2];
  const char* data;
};
constexpr size_t kElement = 2, kRow = 128;  // bytes of an element, of a box's row
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

/// 128-byte swizzle: bits 4 to 6 of an address are those of the 16 bytes within its row, 7 to 9 the row's.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

void copy(const Map& map, uint32_t to, int x, int y, int z) {
  const auto inside = [](int64_t i, uint64_t size) { return i >= 0 && static_cast<uint64_t>(i) < size; };
  for (uint32_t r = 0; r < map.box[1]; ++r)
    for (uint32_t e = 0; e < map.box[0]; ++e) {
      const int64_t column = int64_t{x} + e, row = int64_t{y} + r;
      unsigned char* const at =
          shared_at(swizzled(to + r * uint32_t{kRow} + e * uint32_t{kElement}), kElement);
      if (inside(column, map.sizes[0]) && inside(row, map.sizes[1]) && inside(z, map.sizes[2]))
        std::memcpy(at,
                    map.data + static_cast<size_t>(column) * kElement +
                        static_cast<size_t>(row) * map.strides[0] + static_cast<size_t>(z) * map.strides[1],
                    kElement);
      else
        std::memset(at, 0, kElement);
    }
}

CUresult CUDAAPI encode(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* data,
                        const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                        const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                        CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const bool supported =
      rank == 3 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
      fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
      (type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  if (!supported) return CUDA_ERROR_NOT_SUPPORTED;
  bool good = reinterpret_cast<uintptr_t>(data) % 16 == 0 && box[0] * kElement == kRow;
  for (cuuint32_t i = 0; i < rank; ++i)
    good =
        good && sizes[i] > 0 && sizes[i] <= uint64_t{1} << 32 && box[i] > 0 && box[i] <= 256 && steps[i] == 1;
  for (cuuint32_t i = 0; i + 1 < rank; ++i)
    good = good && strides[i] > 0 && strides[i] % 16 == 0 && strides[i] < uint64_t{1} << 40;
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  const Map map{Map::kMade,
                {box[0], box[1], box[2]},
                {sizes[0], sizes[1], sizes[2]},
                {strides[0], strides[1]},
                static_cast<char*>(data)};
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

// ---- products

struct Product {
  float* d;
  uint32_t columns;
  uint64_t a, b;
  bool add, bf16;
};
struct Thread {
  uint64_t block = 0;
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
};
thread_local std::vector<Thread> threads(kMostThreads);

/// Returns the state of the calling thread.
Thread& products() {
  Thread& t = threads[threadIdx.x];
  if (t.block != block_number()) {
    const bool forgotten = !t.open.empty() || !t.groups.empty();
    t = {.block = block_number(), .open = {}, .groups = {}};
    if (forgotten) misuse("products of an earlier block were never waited for");
  }
  return t;
}

/// All lanes of a warp, with the same value.
void together(uint64_t value, const Place& place) {
  if (warp_operation(Warp::match, ~0u, value, 0, place) != ~0u)
    misuse("a warp's operands of a product differ");
}

/// Sixteen elements of a row of a tile that a descriptor names.
void load_row(uint64_t descriptor, uint32_t row, bool bf16, float (&out)[16]) {
  const auto begin = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const unsigned char* at = nullptr;
  const auto groups_apart = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  for (uint32_t k = 0; k < 16; ++k) {
    const uint32_t address =
        begin + row / 8 * groups_apart + row % 8 * uint32_t{kRow} + k * uint32_t{kElement};
    if (k % 8 == 0) at = shared_at(swizzled(address), 8 * kElement);  // 16 bytes stay together
    if (bf16) {
      __nv_bfloat16 v;
      std::memcpy(&v, at + k % 8 * kElement, kElement);
      out[k] = __bfloat162float(v);
    } else {
      __half v;
      std::memcpy(&v, at + k % 8 * kElement, kElement);
      out[k] = __half2float(v);
    }
  }
}

/// The calling thread's share: rows y and y + 8, columns 8 j + x and the next.
void compute(const Product& p) {
  const uint32_t thread = threadIdx.x % 128;
  const uint32_t y = thread / 32 * 16 + thread % 32 / 4, x = thread % 4 * 2;
  float rows[2][16], column[16];
  for (uint32_t h = 0; h < 2; ++h) load_row(p.a, y + 8 * h, p.bf16, rows[h]);
  for (uint32_t j = 0; j < p.columns / 8; ++j)
    for (uint32_t e = 0; e < 2; ++e) {
      load_row(p.b, 8 * j + x + e, p.bf16, column);
      for (uint32_t h = 0; h < 2; ++h) {
        float& d = p.d[4 * j + 2 * h + e];
        float sum = p.add ? d : 0;
        for (int k = 0; k < 16; ++k) sum += rows[h][k] * column[k];
        d = sum;
      }
    }
}

}  // namespace

void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  if (arrivals == 0 || arrivals > 255 || shared_address(barrier) % 8 != 0)
    misuse("a barrier of no or too many arrivals, or at an odd address");
  const auto n = static_cast<uint8_t>(arrivals);
  const Barrier b{Barrier::kMade, 0, n, n, 0};
  std::memcpy(barrier, &b, sizeof b);
}

void barrier_arrive(uint64_t* barrier, uint32_t expected_bytes) {
  Barrier b = load(barrier);
  if (b.missing == 0) misuse("a barrier gets an arrival too many");
  --b.missing;
  b.bytes += static_cast<int32_t>(expected_bytes);
  store(barrier, b);
}

void barrier_wait(uint64_t* barrier, uint32_t parity, const Place& place) {
  struct Wait {
    const uint64_t* barrier;
    uint32_t parity;
  } const wait{barrier, parity};
  wait_until(
      [](const void* w) {
        const Wait& asked = *static_cast<const Wait*>(w);
        return load(asked.barrier).phase != asked.parity;
      },
      &wait, place);
}

void named_barrier(int id, int threads_of_it, const Place& place) {
  if (id < 1 || id > 15 || threads_of_it % 32 != 0)
    misuse("a named barrier has number 1 to 15 and whole warps");
  NamedBarrier& b = named[id];
  if (b.block != block_number()) b = {block_number(), b.phase, 0, threads_of_it};
  if (b.arrived == 0) b.threads = threads_of_it;
  if (b.threads != threads_of_it) misuse("threads come to a named barrier with different numbers");
  if (++b.arrived == b.threads) {
    b.arrived = 0;
    ++b.phase;
    return;
  }
  struct Wait {
    const NamedBarrier* barrier;
    uint64_t phase;
  } const wait{&b, b.phase};
  wait_until(
      [](const void* w) {
        const Wait& asked = *static_cast<const Wait*>(w);
        return asked.barrier->phase != asked.phase;
      },
      &wait, place);
}

void copy_box(void* to, const CUtensorMap* map, int x, int y, int z, uint64_t* barrier) {
  Map m;
  std::memcpy(&m, map, sizeof m);
  if (m.made != Map::kMade) misuse("a tensor map that nobody encoded");
  const uint32_t address = shared_address(to);
  if (address % 1024 != 0) misuse("a box in 128-byte swizzle is copied to no multiple of 1024 bytes");
  load(barrier);
  later([=] {
    copy(m, address, x, y, z);
    Barrier b = load(barrier);
    b.bytes -= static_cast<int32_t>(m.box[1] * kRow);
    store(barrier, b);
  });
}

void multiply_add(float* d, int columns, uint64_t a, uint64_t b, bool add, bool bf16, const Place& place) {
  if (columns % 8 != 0 || columns < 8 || columns > 256) misuse("a product has 8 to 256 columns, in eights");
  together(a, place);
  together(b * 2 + (add ? 1 : 0), place);
  for (const uint64_t descriptor : {a, b})
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
      misuse("an operand of a product is not in 128-byte swizzle");
  products().open.push_back({d, static_cast<uint32_t>(columns), a, b, add, bf16});
}

void products_commit(const Place& place) {
  together(0, place);
  Thread& t = products();
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}

void products_wait(size_t pending, const Place& place) {
  together(pending, place);
  Thread& t = products();
  for (; t.groups.size() > pending; t.groups.pop_front())
    for (const Product& p : t.groups.front()) compute(p);
}

}  // namespace cuda_host::hopper

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
  if (const int code = cuda_host::enter("cudaGetDriverEntryPointByVersion"))
    return static_cast<cudaError_t>(code);
  const bool known = std::string(symbol) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&cuda_host::hopper::encode) : nullptr;
  if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
