// Types across the border of libsherd.so. An error thrown by the library is caught by its type. dynamic_cast
// finds a class derived from one of the library's. A type's identity is the same on both sides.
#include <cstdio>
#include <typeinfo>

#include <sherd/sherd.h>

using namespace sherd;

struct MyError : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

int main() {
  int caught = 0;
  try {
    launch(2, [](RankContext& rank) {
      (void)Tensor::empty(*rank.device, {4}, DType::f32, "data")
          .view({3});  // thrown inside the library, in a rank
    });
  } catch (const ShapeMismatch& e) {
    caught += dynamic_cast<const Error*>(&e) != nullptr;
  }
  try {
    launch(1, [](RankContext&) { throw MyError("mine"); });  // through the library
  } catch (const Error& e) {
    caught += dynamic_cast<const MyError*>(&e) != nullptr && typeid(e) == typeid(MyError);
  }
  std::printf("boundary: %d of 2\n", caught);
  return caught == 2 ? 0 : 1;
}
