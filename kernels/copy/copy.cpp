#include <sherd/kernels/copy/copy.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/device/file_memory.h>

namespace sherd::ops {

using namespace door;

namespace {

/// Returns memory where data from the host waits for its stream: counted in Device::copies(), bounded by
/// RunAhead. May wait.
std::shared_ptr<char> host_block(Device& device, int64_t bytes) {
  struct Return {
    Device& device;
    int64_t bytes;
    void operator()(char* block) const {
      device.copies().release(block, true);
      device.run_ahead().give(bytes);
    }
  };
  device.run_ahead().take(bytes);
  char* block = nullptr;
  try {
    block = static_cast<char*>(
        device.copies().allocate(bytes, MemoryClass::scratch, "copies from the host", true));
  } catch (...) {
    device.run_ahead().give(bytes);
    throw;
  }
  return {block, Return{device, bytes}};
}

/// Returns the file in which the tensor rests; null for memory.
FileMemory* file_of(const Tensor& t) { return t.place() == Place::host ? t.device().tier_file() : nullptr; }

void copy_over_link(Stream& s, const Tensor& dst, const Tensor& src) {
  s.expect({.host_bytes = src.nbytes()});
  s.submit({"copy", WorkKind::copy}, [f = kernels<CopyKernels>(s).copy, file = s.device().tier_file(),
                                      stores = dst.place() == Place::host, to = dst.raw(), from = src.raw(),
                                      bytes = src.nbytes()](ExecutionContext& c) {
    if (file == nullptr) return f(c, to, from, bytes);
    stores ? file->write(to, from, bytes) : file->read(to, from, bytes);
  });
}

}  // namespace

void copy(Stream& s, const Tensor& dst, const Tensor& src) {
  Check check("copy");
  check.that(dst.defined() && src.defined(), "dst or src is undefined").done();
  check.dtype("dst", dst, src.dtype()).count("dst", dst, src.numel()).done();
  if (dst.raw() == src.raw()) return;
  s.device().count_copy(src.nbytes());
  if (dst.place() != src.place()) return copy_over_link(s, dst, src);
  queue(s, {"copy", WorkKind::copy}, kernels<CopyKernels>(s).copy, dst.raw(), src.raw(), src.nbytes());
}

void copy_from_host(Stream& s, const Tensor& dst, const void* src, int64_t bytes) {
  Check check("copy_from_host");
  check.that(dst.defined(), "dst is undefined").done();
  check.that(dst.nbytes() == bytes, fmt::format("dst has {} bytes, {} are given", dst.nbytes(), bytes))
      .done();
  const auto host = host_block(s.device(), bytes);
  if (bytes > 0) std::memcpy(host.get(), src, static_cast<size_t>(bytes));
  s.submit({"copy_from_host", WorkKind::copy}, [f = kernels<CopyKernels>(s).copy, file = file_of(dst),
                                                to = dst.raw(), host, bytes](ExecutionContext& c) {
    if (file != nullptr) return file->write(to, host.get(), bytes);
    f(c, to, host.get(), bytes);
    c.keep(host);
  });
}

void copy_to_host(Stream& s, void* dst, const Tensor& src) {
  Check("copy_to_host").that(src.defined(), "src is undefined").done();
  if (FileMemory* const file = file_of(src))
    s.submit({"copy_to_host", WorkKind::copy}, [=, from = src.raw(), bytes = src.nbytes()](
                                                   ExecutionContext&) { file->read(dst, from, bytes); });
  else
    queue(s, {"copy_to_host", WorkKind::copy}, kernels<CopyKernels>(s).copy, dst, src.raw(), src.nbytes());
  s.synchronize();
}

std::vector<float> to_floats(Stream& s, const Tensor& src) {
  Check("to_floats").dtype("src", src, {DType::f32, DType::bf16, DType::f16}).done();
  std::vector<float> out(static_cast<size_t>(src.numel()));
  if (src.dtype() == DType::f32) {
    copy_to_host(s, out.data(), src);
    return out;
  }
  std::vector<uint16_t> bits(out.size());
  copy_to_host(s, bits.data(), src);
  std::transform(bits.begin(), bits.end(), out.begin(), [&](uint16_t b) {
    return src.dtype() == DType::bf16 ? float(std::bit_cast<bf16>(b)) : float(std::bit_cast<f16>(b));
  });
  return out;
}

void strided_copy(Stream& s, const Tensor& dst, int64_t dst_stride, const Tensor& src, int64_t src_stride,
                  int64_t blocks, int64_t run) {
  Check check("strided_copy");
  check.that(dst.defined() && src.defined(), "dst or src is undefined").done();
  check.dtype("dst", dst, src.dtype());
  const auto fits = [&](const Tensor& t, int64_t stride) {
    return stride >= 0 && (blocks - 1) * stride + run <= t.numel();
  };
  if (blocks > 0 && run > 0)
    check.that(fits(dst, dst_stride) && fits(src, src_stride),
               fmt::format("{} runs of {} elements leave dst {} (stride {}) or src {} (stride {})", blocks,
                           run, to_string(dst.shape()), dst_stride, to_string(src.shape()), src_stride));
  check.done();
  if (blocks <= 0 || run <= 0) return;
  const int64_t e = size_of(src.dtype());
  s.device().count_copy(blocks * run * e);
  queue(s, {"strided_copy", WorkKind::copy}, kernels<CopyKernels>(s).strided_copy,
        StridedCopyArgs{static_cast<char*>(dst.raw()), static_cast<const char*>(src.raw()), dst_stride * e,
                        src_stride * e, blocks, run * e});
}

}  // namespace sherd::ops
