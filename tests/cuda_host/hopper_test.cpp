// The twins of compute capability 9.0's barriers, copies and products against plain loops, and what they
// refuse.
#include <sherd/kernels/device/cuda/hopper.h>
#include <sherd/kernels/device/cuda/launch.h>

#include <functional>
#include <string>
#include <vector>

#include "support/message_of.h"

namespace sherd::cuda {
namespace {

constexpr int kWide = 64, kRows = 64, kCols = 256;  // a row of a box; rows of both factors
constexpr int kABytes = kRows * 128, kBBytes = kCols * 128;
constexpr int kShared = 1024 + kABytes + kBBytes + 64;

/// [matrices, rows, columns] of small whole numbers, whose sums are exact.
struct Matrix {
  int rows, columns;
  std::vector<__half> values;
  Matrix(int matrices, int r, int c, int step) : rows(r), columns(c) {
    for (int i = 0; i < matrices * r * c; ++i)
      values.push_back(__float2half_rn(static_cast<float>((i * step) % 13 - 6)));
  }
  float at(int matrix, int row, int column) const {
    return row < rows && column < columns
               ? __half2float(values[static_cast<size_t>((matrix * rows + row) * columns + column)])
               : 0;
  }
};

CUresult encode(CUtensorMap& map, const void* data, int rows, int columns, int matrices, cuuint64_t row_bytes,
                cuuint32_t box_rows) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state{};
  EXPECT_EQ(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &state),
      cudaSuccess);
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows), cuuint64_t(matrices)};
  const cuuint64_t strides[] = {row_bytes, row_bytes * cuuint64_t(rows)};
  const cuuint32_t box[] = {kWide, box_rows, 1}, steps[] = {1, 1, 1};
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, const_cast<void*>(data), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
CUtensorMap map_of(const Matrix& m, int matrices, cuuint32_t box_rows) {
  CUtensorMap map;
  EXPECT_EQ(encode(map, m.values.data(), m.rows, m.columns, matrices, cuuint64_t(m.columns) * 2, box_rows),
            CUDA_SUCCESS);
  return map;
}

unsigned char* aligned_shared() {
  SHERD_DYNAMIC_SHARED(unsigned char, memory);
  return memory + (1024 - hopper::shared_address(memory) % 1024) % 1024;
}

TEST(Hopper, BoxesAreStoredInRowsOf128BytesSwizzled) {
  const Matrix m(2, 70, 40, 3);  // narrower than a box, and 70 rows in boxes of 64
  const CUtensorMap map = map_of(m, 2, kRows);
  std::vector<float> got(kRows * kWide);
  cuda_host::run("box", dim3(1), dim3(32), kShared, [&] {
    unsigned char* const box = aligned_shared();
    auto* const barrier = reinterpret_cast<uint64_t*>(box + kABytes);
    if (threadIdx.x == 0) {
      hopper::barrier_init(barrier, 1);
      hopper::barrier_arrive_expecting(barrier, kABytes);
      hopper::copy_box(box, &map, 0, 32, 1, barrier);
    }
    __syncthreads();
    hopper::barrier_wait(barrier, 0);
    // 16 bytes number c of row r are where c differs from r in its three bits.
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kWide; i += 32) {
      const int r = i / kWide, c = i % kWide / 8, e = i % 8;
      got[static_cast<size_t>(i)] =
          __half2float(reinterpret_cast<__half*>(box + r * 128 + (c ^ r % 8) * 16)[e]);
    }
  });
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kWide; ++c)
      EXPECT_EQ(got[static_cast<size_t>(r * kWide + c)], m.at(1, 32 + r, c)) << r << ", " << c;
}

/// Expects the elements of a warpgroup's product of 64 rows and kWidth columns at plain places.
template <int kWidth>
void expect_product() {
  const Matrix a(1, kRows, kWide, 5), b(1, kWidth, kWide, 7);
  const CUtensorMap map_a = map_of(a, 1, kRows), map_b = map_of(b, 1, kWidth);
  std::vector<float> got(kRows * kWidth, -1);
  constexpr int kB = kWidth * 128;
  cuda_host::run("product", dim3(1), dim3(128), kShared, [&] {
    unsigned char* const tiles = aligned_shared();
    auto* const barrier = reinterpret_cast<uint64_t*>(tiles + kABytes + kB);
    if (threadIdx.x == 0) {
      hopper::barrier_init(barrier, 1);
      hopper::barrier_arrive_expecting(barrier, kABytes + kB);
      hopper::copy_box(tiles, &map_a, 0, 0, 0, barrier);
      hopper::copy_box(tiles + kABytes, &map_b, 0, 0, 0, barrier);
    }
    __syncthreads();
    hopper::barrier_wait(barrier, 0);
    float d[kWidth / 2];
    for (int part = 0; part < kWide / 16; ++part)
      hopper::multiply_add(d, hopper::tile_descriptor(tiles) + 2u * unsigned(part),
                           hopper::tile_descriptor(tiles + kABytes) + 2u * unsigned(part), part > 0,
                           __half{});
    hopper::products_commit();
    hopper::products_wait<0>();
    const int t = static_cast<int>(threadIdx.x), row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (int i = 0; i < kWidth / 2; ++i)
      got[static_cast<size_t>((row + i / 2 % 2 * 8) * kWidth + i / 4 * 8 + column + i % 2)] = d[i];
  });
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kWidth; ++j) {
      float want = 0;
      for (int k = 0; k < kWide; ++k) want += a.at(0, i, k) * b.at(0, j, k);
      ASSERT_EQ(got[static_cast<size_t>(i * kWidth + j)], want) << i << ", " << j;
    }
}

TEST(Hopper, MultipliesTilesByDescriptor) {
  expect_product<128>();
  expect_product<144>();
  expect_product<256>();
}

TEST(Hopper, NamedBarriersHoldTheirThreadsAlone) {
  std::vector<int> order;
  cuda_host::run("named", dim3(1), dim3(96), 0, [&] {
    if (threadIdx.x >= 64) return;  // never comes
    for (int round = 0; round < 3; ++round) {
      if (threadIdx.x == 40) order.push_back(round);
      hopper::named_barrier(3, 64);
      if (threadIdx.x == 0) order.push_back(round);
      hopper::named_barrier(3, 64);
    }
  });
  EXPECT_EQ(order, (std::vector{0, 0, 1, 1, 2, 2}));
}

std::string refusal(const std::function<void()>& body, unsigned threads = 32) {
  return message_of<std::logic_error>(
      [&] { cuda_host::run("wrong", dim3(1), dim3(threads), kShared, body); });
}

TEST(Hopper, MisuseIsNamed) {
  const Matrix m(1, kRows, kWide, 5);
  const CUtensorMap map = map_of(m, 1, kRows);
  const auto barrier = [] { return reinterpret_cast<uint64_t*>(aligned_shared() + kABytes); };
  EXPECT_THAT(refusal([&] { hopper::barrier_arrive(barrier()); }), HasSubstr("before it is initialised"));
  EXPECT_THAT(refusal([&] {
                if (threadIdx.x == 0) hopper::barrier_init(barrier(), 2);
                __syncthreads();
                hopper::barrier_wait(barrier(), 0);
              }),
              HasSubstr("waiting in hopper_test.cpp"));
  EXPECT_THAT(refusal([&] {
                if (threadIdx.x != 0) return;
                hopper::barrier_init(barrier(), 1);
                hopper::barrier_arrive_expecting(barrier(), kABytes);
                hopper::copy_box(aligned_shared(), &map, 0, 0, 0, barrier());
              }),
              HasSubstr("ends before the copies"));
  EXPECT_THAT(refusal([&] {
                if (threadIdx.x != 0) return;
                hopper::barrier_init(barrier(), 1);
                hopper::copy_box(aligned_shared() + 512, &map, 0, 0, 0, barrier());
              }),
              HasSubstr("no multiple of 1024"));
  EXPECT_THAT(refusal(
                  [&] {
                    float d[128];
                    hopper::multiply_add(d, hopper::tile_descriptor(aligned_shared()) + threadIdx.x,
                                         hopper::tile_descriptor(aligned_shared()), 0, __half{});
                  },
                  128),
              HasSubstr("operands of a product differ"));
}

TEST(Hopper, MapsThatNoChipTakesAreRefused) {
  const Matrix m(1, 8, 12, 5);  // rows of 24 bytes
  CUtensorMap map;
  EXPECT_EQ(encode(map, m.values.data(), 8, 12, 1, 24, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(map, m.values.data() + 1, 8, 12, 1, 32, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(map, m.values.data(), 8, 12, 1, 32, 300), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace sherd::cuda
