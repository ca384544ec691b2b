#include <sherd/checkpoint/finite.h>

#include <algorithm>
#include <cstring>

namespace sherd {
namespace {

// A float is not finite when its exponent's bits are all set.
template <class Bits>
void count_exponents(Bits exponent, const char* data, int64_t count, int64_t at, NotFinite& into) {
  constexpr int64_t kChunk = 4096;
  Bits chunk[kChunk];
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t n = std::min(kChunk, count - done);
    std::memcpy(chunk, data + done * static_cast<int64_t>(sizeof(Bits)),
                static_cast<size_t>(n) * sizeof(Bits));
    int32_t found = 0;  // one lane's width for the compiler, whatever the elements are
    for (int64_t i = 0; i < n; ++i) found += (chunk[i] & exponent) == exponent;
    if (found > 0 && into.count == 0)
      into.first =
          at + done +
          (std::find_if(chunk, chunk + n, [&](Bits b) { return (b & exponent) == exponent; }) - chunk);
    into.count += found;
  }
}

}  // namespace

void count_not_finite(DType dtype, const void* data, int64_t count, int64_t at, NotFinite& into) {
  const char* bytes = static_cast<const char*>(data);
  switch (dtype) {
    case DType::f32:
      return count_exponents<uint32_t>(0x7f800000, bytes, count, at, into);
    case DType::bf16:
      return count_exponents<uint16_t>(0x7f80, bytes, count, at, into);
    case DType::f16:
      return count_exponents<uint16_t>(0x7c00, bytes, count, at, into);
    case DType::f64:
      return count_exponents<uint64_t>(0x7ff0000000000000, bytes, count, at, into);
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:  // codes, whose scales say
      return;
  }
}

}  // namespace sherd
