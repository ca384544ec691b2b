#include <sherd/checkpoint/detail/copy_out.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

#include <sherd/kernels/device/file_memory.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr const char* kName = "checkpoint copy";
/// Elements that are read in place at a time; an update that overwrites them waits for no more.
constexpr int64_t kPiece = int64_t{1} << 20;

// A stream has run dry before the memory that its copies go to.
struct RunDry {
  Stream& stream;
  ~RunDry() {
    try {
      stream.synchronize();
    } catch (const std::exception&) {  // the wait for the copy has reported it
    }
  }
};

}  // namespace

CopyOut::CopyOut(Device& device, const std::vector<LocalTensor>& tensors)
    : device_(device), tensors_(tensors), stream_(device.make_stream("checkpoint copies")) {}

// Piece by piece through memory that the stream's order protects.
void CopyOut::copy_joined(const LocalTensor& t, int64_t first, int64_t count, const Tensor& to) {
  constexpr int64_t kElements = int64_t{1} << 20;
  if (!joined_.defined())
    joined_ = Tensor::empty(device_, {kElements}, DType::f32, MemoryClass::scratch, kName);
  for (int64_t at = 0; at < count; at += kElements) {
    const int64_t n = std::min(kElements, count - at), begin = first + at;
    const Tensor whole = joined_.flat(0, n);
    ops::join(*stream_, whole, t.data.flat(begin, begin + n), t.low.flat(begin, begin + n));
    ops::copy(*stream_, to.flat(4 * at, 4 * (at + n)), whole.bytes());
  }
}

void CopyOut::copy(const LocalTensor& t, int64_t first, int64_t count, const Tensor& to) {
  if (t.low.defined()) {
    copy_joined(t, first, count, to);
  } else if (t.data.defined()) {
    ops::copy(*stream_, to, t.data.flat(first, first + count).bytes());
  } else {
    const float value = t.value();
    std::memcpy(to.raw(), &value, sizeof value);
  }
}

Event CopyOut::all(const std::vector<PlannedFile>& files, const Tensor& to) {
  forget();
  follow_compute(*stream_);
  int64_t at = 0;
  for (const PlannedFile& file : files) {
    for (const PlannedEntry& e : file.entries) {
      const LocalTensor& t = tensors_[e.tensor];
      if (read_in_place(t)) {
        for (int64_t begin = 0; begin < e.count; begin += kPiece) {
          const int64_t first = e.first + begin;
          const Tensor piece = t.data.flat(first, first + std::min(kPiece, e.count - begin));
          in_place_.push_back({piece, 0});
        }
        continue;
      }
      const int64_t bytes = e.count * size_of(t.dtype);
      copy(t, e.first, e.count, to.flat(at, at + bytes));
      at += bytes;
    }
  }
  for (Piece& p : in_place_) p.number = device_.tier_reads().add(p.data.raw(), p.data.nbytes());
  return stream_->record();
}

void CopyOut::snapshot(const PlannedFile& file, const std::byte*& copied,
                       const std::function<void(const void*, int64_t)>& take) {
  const FileMemory* const tier = device_.tier_file();
  std::vector<std::byte> block;
  for (const PlannedEntry& e : file.entries) {
    if (!read_in_place(tensors_[e.tensor])) {
      const int64_t bytes = e.count * size_of(e.dtype);
      take(copied, bytes);
      copied += bytes;
      continue;
    }
    for (int64_t left = e.count; left > 0;) {
      const auto [piece, number] = in_place_.front();
      const void* data = piece.raw();
      if (tier != nullptr) {  // not by its mapping
        block.resize(static_cast<size_t>(piece.nbytes()));
        tier->read(block.data(), data, piece.nbytes());
        data = block.data();
      }
      take(data, piece.nbytes());
      in_place_.pop_front();
      device_.tier_reads().done(number);
      left -= piece.numel();
    }
  }
}

void CopyOut::forget() {
  for (const Piece& p : in_place_) device_.tier_reads().done(p.number);
  in_place_.clear();
}

void CopyOut::blocks(const PlannedFile& file, const std::function<void(const void*, int64_t)>& take) {
  struct Block {
    const LocalTensor* tensor;
    int64_t first, count;
    int64_t bytes() const { return count * size_of(tensor->dtype); }
  };
  std::vector<Block> list;
  int64_t largest = 0;
  for (const PlannedEntry& e : file.entries) {
    const LocalTensor& t = tensors_[e.tensor];
    const int64_t most = kChecksumBlock / size_of(t.dtype);
    for (int64_t at = 0; at < e.count; at += most) {
      list.push_back({&t, e.first + at, std::min(most, e.count - at)});
      largest = std::max(largest, list.back().bytes());
    }
  }
  std::array<Tensor, 2> memory;
  for (Tensor& m : memory) m = Tensor::host(device_, {largest}, DType::u8, MemoryClass::scratch, kName);
  const RunDry end{*stream_};
  std::array<Event, 2> there;
  const auto fetch = [&](size_t i) {
    const Block& b = list[i];
    copy(*b.tensor, b.first, b.count, memory[i % 2].flat(0, b.bytes()));
    there[i % 2] = stream_->record();
  };
  follow_compute(*stream_);
  if (!list.empty()) fetch(0);
  for (size_t i = 0; i < list.size(); ++i) {
    if (i + 1 < list.size()) fetch(i + 1);
    there[i % 2].synchronize();
    take(memory[i % 2].raw(), list[i].bytes());
  }
}

}  // namespace sherd
