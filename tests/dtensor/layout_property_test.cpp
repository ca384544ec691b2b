// Properties of every layout, for random shapes.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <sherd/dtensor/layout.h>

namespace sherd {
namespace {

struct Case {
  std::vector<LayoutParam> params;
  int world = 1;
  LayoutOptions options;
};

void showValue(const Case& c, std::ostream& os) {
  os << "world " << c.world << " policy " << static_cast<int>(c.options.policy) << " align "
     << c.options.align << " budget " << c.options.padding_budget << " rotation " << c.options.rotation
     << " params";
  for (const auto& p : c.params) os << ' ' << to_string(p.shape) << (p.cut == CutClass::row ? "r" : "e");
}

rc::Gen<LayoutParam> any_param() {
  return rc::gen::exec([] {
    LayoutParam p;
    const auto dims = *rc::gen::inRange<size_t>(0, 4);
    const auto top = *rc::gen::element<int64_t>(2, 4, 9, 30);  // small tops give ones and zeros often
    p.shape =
        *rc::gen::container<Shape>(dims, rc::gen::inRange<int64_t>(*rc::gen::element<int64_t>(0, 1), top));
    p.cut = *rc::gen::element(CutClass::element, CutClass::row);
    return p;
  });
}

rc::Gen<Case> any_case() {
  return rc::gen::exec([] {
    Case c;
    c.params = *rc::gen::container<std::vector<LayoutParam>>(*rc::gen::inRange<size_t>(1, 12), any_param());
    for (size_t i = 0; i < c.params.size(); ++i) c.params[i].name = fmt::format("p{}", i);
    c.world = *rc::gen::element(1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 128);
    c.options.policy =
        *rc::gen::element(LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param);
    c.options.packing = *rc::gen::element(Packing::lpt, Packing::size_match, Packing::ping_pong);
    c.options.align = *rc::gen::element<int64_t>(1, 8, 64);
    c.options.padding_budget = *rc::gen::element(0.0, 0.03, 0.5);
    c.options.rotation = *rc::gen::inRange(-3, 20);
    return c;
  });
}

RC_GTEST_PROP(LayoutProperty, EveryElementIsOwnedOnce, ()) {
  const Case c = *any_case();
  const auto l = ShardLayout::make(c.params, c.world, c.options);
  for (int p = 0; p < static_cast<int>(c.params.size()); ++p) {
    const int64_t numel = numel_of(c.params[p].shape);
    RC_ASSERT(l.full_range(ParamId(p)).size() == numel);
    int64_t at = 0;
    for (int r = 0; r < c.world; ++r) {
      const ParamRange piece = l.piece(ParamId(p), RankId(r));
      RC_ASSERT(piece.begin.value == at);  // also: empty pieces behind the end start at numel
      RC_ASSERT(piece.end >= piece.begin);
      at = piece.end.value;
      int64_t in_boxes = 0;
      for (const Box& b : l.boxes(ParamId(p), RankId(r))) in_boxes += numel_of(b.size);
      RC_ASSERT(in_boxes == piece.size());
    }
    RC_ASSERT(at == numel);
  }
}

RC_GTEST_PROP(LayoutProperty, NothingOverlapsInEitherBuffer, ()) {
  const Case c = *any_case();
  const auto l = ShardLayout::make(c.params, c.world, c.options);
  std::vector<char> full(static_cast<size_t>(l.full_elements())),
      buffer(static_cast<size_t>(l.buffer_elements()));
  RC_ASSERT(l.slice() > 0);
  RC_ASSERT(l.slice() % c.options.align == 0);
  RC_ASSERT(!l.zero_copy() || l.full_elements() == l.buffer_elements());
  int64_t used = 0;
  for (int p = 0; p < static_cast<int>(c.params.size()); ++p) {
    const FullRange whole = l.full_range(ParamId(p));
    RC_ASSERT(whole.begin.value >= 0);
    RC_ASSERT(whole.end.value <= l.full_elements());
    for (int64_t i = whole.begin.value; i < whole.end.value; ++i)
      RC_ASSERT(full[static_cast<size_t>(i)]++ == 0);
    for (int r = 0; r < c.world; ++r) {
      const ParamRange piece = l.piece(ParamId(p), RankId(r));
      const int64_t local = l.local_begin(ParamId(p), RankId(r)).value;
      RC_ASSERT(local >= 0);
      RC_ASSERT(local + piece.size() <= l.slice());
      for (int64_t i = 0; i < piece.size(); ++i)
        RC_ASSERT(buffer[static_cast<size_t>(r * l.slice() + local + i)]++ == 0);
      if (l.zero_copy() && !piece.empty())
        RC_ASSERT(r * l.slice() + local == (whole.begin + piece.begin.value).value);
      used += piece.size();
    }
  }
  RC_ASSERT(l.padding() == l.buffer_elements() - used);
}

RC_GTEST_PROP(LayoutProperty, RaggedKeepsThePaddingBudgetAndReportsEveryCutRow, ()) {
  Case c = *any_case();
  c.options.policy = LayoutPolicy::ragged;
  const auto l = ShardLayout::make(c.params, c.world, c.options);
  const int64_t total = l.buffer_elements() - l.padding();
  const int64_t align = c.options.align;
  const int64_t tight = (std::max<int64_t>(total, 1) + c.world - 1) / c.world;
  const int64_t unavoidable = c.world * ((tight + align - 1) / align * align);
  const auto budget =
      static_cast<int64_t>(std::floor((1 + c.options.padding_budget) * static_cast<double>(total)));
  RC_ASSERT(l.buffer_elements() <= std::max(unavoidable, budget));

  std::vector<std::tuple<int, int, int64_t>> expected, reported;
  for (int p = 0; p < static_cast<int>(c.params.size()); ++p)
    for (int r = 1; r < c.world && c.params[p].cut == CutClass::row; ++r) {
      const int64_t at = l.piece(ParamId(p), RankId(r)).begin.value;
      const int64_t numel = numel_of(c.params[p].shape);
      const bool inside = at > 0 && at < numel && l.full_range(ParamId(p)).begin.value + at == r * l.slice();
      if (inside && at % row_size(c.params[p].shape) != 0) expected.emplace_back(p, r, at);
    }
  for (const CutRow& cut : l.cut_rows()) reported.emplace_back(cut.param, cut.rank, cut.at.value);
  RC_ASSERT(reported == expected);
}

RC_GTEST_PROP(LayoutProperty, EvenRowsAreCeilChunksAtOnePlaceInEverySlice, ()) {
  Case c = *any_case();
  c.options.policy = LayoutPolicy::even_rows;
  const auto l = ShardLayout::make(c.params, c.world, c.options);
  for (int p = 0; p < static_cast<int>(c.params.size()); ++p) {
    const Shape& shape = c.params[p].shape;
    const int64_t rows = row_count(shape), chunk = (rows + c.world - 1) / c.world;
    for (int r = 0; r < c.world; ++r) {
      RC_ASSERT(l.piece(ParamId(p), RankId(r)).begin.value == std::min(r * chunk, rows) * row_size(shape));
      RC_ASSERT(l.piece(ParamId(p), RankId(r)).end.value ==
                std::min((r + 1) * chunk, rows) * row_size(shape));
      RC_ASSERT(l.local_begin(ParamId(p), RankId(r)) == l.local_begin(ParamId(p), RankId(0)));
    }
  }
  RC_ASSERT(l.cut_rows().empty());
}

RC_GTEST_PROP(LayoutProperty, WholeParamsAreNeverCutAndStartAligned, ()) {
  Case c = *any_case();
  c.options.policy = LayoutPolicy::whole_param;
  if (*rc::gen::arbitrary<bool>())
    c.options.carried_cost = *rc::gen::container<std::vector<double>>(static_cast<size_t>(c.world),
                                                                      rc::gen::element(0.0, 7.0, 900.0));
  c.options.order_by_carried_cost = *rc::gen::arbitrary<bool>();
  const auto l = ShardLayout::make(c.params, c.world, c.options);
  RC_ASSERT(l.slice() % shard_divisor(c.world) == 0);
  RC_ASSERT(l.cut_rows().empty());
  double before = 0, cost = 0, after = 0;
  for (double x : c.options.carried_cost) before += x;
  for (double x : l.rank_cost()) after += x;
  for (int p = 0; p < static_cast<int>(c.params.size()); ++p) {
    const int64_t numel = numel_of(c.params[p].shape);
    cost += packing_cost(c.params[p]);
    for (int r = 0; r < c.world; ++r) {
      const ParamRange piece = l.piece(ParamId(p), RankId(r));
      RC_ASSERT(piece.empty() || piece.size() == numel);
      if (!piece.empty()) RC_ASSERT(l.local_begin(ParamId(p), RankId(r)).value % 64 == 0);
    }
  }
  RC_ASSERT(after == before + cost);  // whole numbers: exact
}

RC_GTEST_PROP(LayoutProperty, IsAFunctionOfItsArguments, ()) {
  const Case c = *any_case();
  const auto a = ShardLayout::make(c.params, c.world, c.options);
  const auto b = ShardLayout::make(c.params, c.world, c.options);
  RC_ASSERT(a.fingerprint() == b.fingerprint());
  RC_ASSERT(a.describe() == b.describe());
}

}  // namespace
}  // namespace sherd
