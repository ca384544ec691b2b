#include <sherd/checkpoint/detail/stored_codes.h>

namespace sherd {

Shape in_blocks(Shape shape, int64_t block) {
  shape.back() /= block;
  return shape;
}

Box in_blocks(Box box, int64_t block) {
  box.offset.back() /= block;
  box.size.back() /= block;
  return box;
}

void read_codes(CheckpointReader& reader, const CheckpointTensor& codes, const StoredScales& scales,
                std::span<const Box> boxes, std::vector<float>& values) {
  const int64_t block = scales.block;
  std::vector<uint8_t> raw;
  std::vector<float> of_blocks;
  values.clear();
  for (const Box& box : boxes) {
    const int64_t row = box.size.back(), skipped = box.offset.back() % block;
    // Blocks that the box has elements of.
    Box wide = box;
    wide.offset.back() -= skipped;
    wide.size.back() = (skipped + row + block - 1) / block * block;
    const Box some = in_blocks(wide, block);
    raw.resize(static_cast<size_t>(numel_of(box.size)));
    of_blocks.resize(static_cast<size_t>(numel_of(some.size)));
    reader.read(codes, {&box, 1}, raw.data());
    reader.read(*scales.tensor, {&some, 1}, of_blocks.data());
    with_code(scales.code, [&](auto code) {
      for (size_t i = 0; i < raw.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const int64_t scale = at / row * some.size.back() + (skipped + at % row) / block;
        values.push_back(dequantized<decltype(code)::value>(raw[i], of_blocks[static_cast<size_t>(scale)]));
      }
    });
  }
}

}  // namespace sherd
