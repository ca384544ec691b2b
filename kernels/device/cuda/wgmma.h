// Products of a warpgroup of compute capability 9.0, one function per width and type. Included by hopper.h,
// where nvcc compiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace sherd::cuda::hopper {

// Lists of so many accumulators: in the instruction's text, and as its operands.
// clang-format off
#define SHERD_NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63"
#define SHERD_SUMS_64 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
  "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
  "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), \
  "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), \
  "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
  "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), \
  "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define SHERD_NAMES_72 \
  SHERD_NAMES_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SHERD_SUMS_72 \
  SHERD_SUMS_64, \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), \
  "+f"(d[71])
#define SHERD_NAMES_80 \
  SHERD_NAMES_72 \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SHERD_SUMS_80 \
  SHERD_SUMS_72, \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), \
  "+f"(d[79])
#define SHERD_NAMES_96 \
  SHERD_NAMES_80 \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SHERD_SUMS_96 \
  SHERD_SUMS_80, \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), \
  "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), \
  "+f"(d[94]), "+f"(d[95])
#define SHERD_NAMES_128 \
  SHERD_NAMES_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SHERD_SUMS_128 \
  SHERD_SUMS_96, \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), \
  "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), \
  "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), \
  "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), \
  "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), \
  "+f"(d[127])
// clang-format on

/// d[64, columns] = a[64, 16] b[columns, 16]^T, plus d where `add` is not 0, by a warpgroup; columns are
/// twice the number of its accumulators. Thread t of it holds d of rows 16 (t / 32) + (t % 32) / 4 and 8
/// more, columns 8 j + 2 (t % 4) and 1 more: d[4 j + 2 r + c] is column c of row r of these. Operands number
/// `a`, `b` and `add` follow the accumulators.
#define SHERD_WGMMA(columns, count, a_at, b_at, add_at, element, type)                                \
  __device__ inline void multiply_add(float(&d)[count], uint64_t a, uint64_t b, int add, element) {   \
    asm volatile(                                                                                     \
        "{\n"                                                                                         \
        ".reg .pred adding;\n"                                                                        \
        "setp.ne.b32 adding, " add_at                                                                 \
        ", 0;\n"                                                                                      \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" SHERD_NAMES_##count \
        "}, " a_at ", " b_at                                                                          \
        ", adding, 1, 1, 0, 0;\n"                                                                     \
        "}"                                                                                           \
        : SHERD_SUMS_##count                                                                          \
        : "l"(a), "l"(b), "r"(add));                                                                  \
  }
#define SHERD_WGMMAS(columns, count, a_at, b_at, add_at)         \
  SHERD_WGMMA(columns, count, a_at, b_at, add_at, __half, "f16") \
  SHERD_WGMMA(columns, count, a_at, b_at, add_at, __nv_bfloat16, "bf16")
SHERD_WGMMAS("128", 64, "%64", "%65", "%66")
SHERD_WGMMAS("144", 72, "%72", "%73", "%74")
SHERD_WGMMAS("160", 80, "%80", "%81", "%82")
SHERD_WGMMAS("192", 96, "%96", "%97", "%98")
SHERD_WGMMAS("256", 128, "%128", "%129", "%130")
#undef SHERD_WGMMAS
#undef SHERD_WGMMA
#undef SHERD_NAMES_64
#undef SHERD_SUMS_64
#undef SHERD_NAMES_72
#undef SHERD_SUMS_72
#undef SHERD_NAMES_80
#undef SHERD_SUMS_80
#undef SHERD_NAMES_96
#undef SHERD_SUMS_96
#undef SHERD_NAMES_128
#undef SHERD_SUMS_128

}  // namespace sherd::cuda::hopper
