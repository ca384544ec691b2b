// Tensors of files that store a model's parameters. Private to checkpoint/.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/detail/wanted.h>
#include <sherd/checkpoint/stored_forms.h>

namespace sherd {

/// A box of a parameter or buffer that is a box of a stored tensor; see StoredPiece.
struct StoredPart {
  size_t wanted = 0;  // its number
  Box in_parameter, in_tensor;
  int64_t step = 1;  // StoredPiece::step
};

/// A tensor of this shape that is stored as it is.
inline StoredPart whole_part(size_t wanted, const Shape& shape) {
  const Box all{Shape(shape.size(), 0), shape};
  return {wanted, all, all};
}

struct StoredTensor {
  Shape shape;
  std::vector<StoredPart> parts;
};

/// One form, with the names that files have.
struct StoredForm {
  std::map<std::string, StoredTensor> tensors;
  /// StoredForms::copies.
  std::map<std::string, std::string> copies;
};

/// The model's parameters and persistent buffers that files hold (StoredForms::holds).
std::vector<Wanted> held_by(const StoredForms& forms, ModuleBase& root);

/// All that files may have, in the order in which they are tried. `wanted` is the model: every form covers
/// each parameter once, and holds what no form names under its own name.
/// @throws InvalidArgument naming every parameter and tensor that a form is wrong about.
std::vector<StoredForm> candidates(const std::vector<Wanted>& wanted, const StoredForms& forms);

/// Returns whether a tensor is not read: it is reported as ignored and is in no form.
bool is_ignored(std::string_view name, const StoredForms& forms, const std::vector<StoredForm>& candidates);

/// Returns whether a form has a tensor or a copy of that name.
bool is_part(std::string_view name, const std::vector<StoredForm>& candidates);

/// The form of which `offered` has the most tensors. A tensor that is missing there is called by the
/// name of a copy that is not.
StoredForm choose(const std::vector<StoredForm>& candidates, const std::set<std::string>& offered);

/// The form's tensors, each as a thing to be filled that is of the dtype of what it is part of: what
/// Comparison compares with what files have.
std::vector<Wanted> as_wanted(const StoredForm& form, const std::vector<Wanted>& wanted);

/// `box`, which lies in part.in_parameter, as a box of the stored tensor; with a step, whose elements are as far apart.
Box in_tensor(const StoredPart& part, const Box& box);

/// The last dimension of a box or of a whole tensor as two: elements between neighbours of a step, and the place in it.
Box in_steps(const Box& box, int64_t step);
Shape in_steps(const Shape& whole, int64_t step);

}  // namespace sherd
