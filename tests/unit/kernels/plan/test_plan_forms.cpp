// Tests what every form of plans has: a plan of each form passes validate, has a text and a size,
// and differs from plans of other forms; and that nothing takes a form that it does not know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/forms.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// An example of a form: the options that make it, and lines of its text.
template <class Form>
struct Example;

template <>
struct Example<SegmentPlan> {
  static PlanOptions options() { return {}; }
  static constexpr const char* kHeader = "plan cpu tile 128x128 score none\n";
  static constexpr const char* kText = "\nwork tile 0: batch 0 head 0 q_tile 2, 3 tiles: ";
  static constexpr PlanForm kPlannedForm = PlanForm::segments;
};

template <>
struct Example<ClosedFormPlan> {
  static PlanOptions options() {
    PlanOptions options;
    options.form = PlanForm::parametric;
    return options;
  }
  static constexpr const char* kHeader = "plan cpu tile 128x128 score none form parametric\n";
  static constexpr const char* kText =
      "\nclosed form 0: pos = q + kv_len - q_len left inf right 0 ";
  static constexpr PlanForm kPlannedForm = PlanForm::parametric;
};

template <>
struct Example<KvWorklist> {
  static PlanOptions options() {
    PlanOptions options;
    options.backend = Backend::sm90;
    options.direction = Direction::backward;
    options.columns = ColumnMode::reorder;
    return options;
  }
  static constexpr const char* kHeader = "plan sm90 backward tile 128x128 score none\n";
  static constexpr const char* kText =
      "\nwork tile 0: batch 0 kv_head 0 key_tile 0: tiles [0, 3), ";
  static constexpr PlanForm kPlannedForm = PlanForm::segments;
};

// The plan of a causal mask in this form.
template <class Form>
AttentionPlan example_plan(std::int64_t len = 300, std::int32_t num_heads = 2) {
  const testing::MaskCase mask = testing::case_of(
      "causal", testing::make_cells(len, len, [](auto q, auto k) { return k <= q; }), {128, 128});
  AttentionShape shape = testing::shape_for(mask.mask, 1, num_heads, 1);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  auto plan = make_plan(mask.mask, shape, {}, Example<Form>::options());
  EXPECT_TRUE(plan) << plan.error().message;
  return *std::move(plan);
}

template <class Variant>
struct TypesOf;
template <class... Forms>
struct TypesOf<std::variant<Forms...>> {
  using Types = ::testing::Types<Forms...>;
};

// One test for each alternative: a form without an example does not compile.
template <class Form>
class PlanForms : public ::testing::Test {};
TYPED_TEST_SUITE(PlanForms, TypesOf<decltype(AttentionPlan::form)>::Types);

TYPED_TEST(PlanForms, PassValidateAndHaveTheirText) {
  const AttentionPlan plan = example_plan<TypeParam>();
  ASSERT_TRUE(std::holds_alternative<TypeParam>(plan.form));
  const auto valid = validate(plan);
  EXPECT_TRUE(valid) << valid.error().message;
  const std::string text = to_text(plan);
  EXPECT_THAT(text, StartsWith(Example<TypeParam>::kHeader));
  EXPECT_THAT(text, HasSubstr(Example<TypeParam>::kText));
  EXPECT_EQ(text, to_text(plan, std::get<TypeParam>(plan.form), 8));
  EXPECT_EQ(plan.planned_form(), Example<TypeParam>::kPlannedForm);
}

TYPED_TEST(PlanForms, SayTheirSizeInTheirText) {
  const AttentionPlan plan = example_plan<TypeParam>();
  EXPECT_GT(plan.num_work_tiles(), 0);
  EXPECT_GT(plan.size_bytes(), 0);
  EXPECT_THAT(to_text(plan),
              HasSubstr("work tiles " + std::to_string(plan.num_work_tiles()) + " (0 empty), " +
                        std::to_string(plan.size_bytes()) + " bytes\n"));
}

TYPED_TEST(PlanForms, AreEqualToTheirCopiesAlone) {
  const AttentionPlan plan = example_plan<TypeParam>();
  AttentionPlan copy = plan;
  EXPECT_EQ(copy, plan);
  copy.form.template emplace<TypeParam>();
  EXPECT_NE(copy, plan);
  copy = plan;
  ++copy.worker_bytes;
  EXPECT_NE(copy, plan);
}

// A form without its arrays; and counts that are not those of the form.
TYPED_TEST(PlanForms, AreRefusedWithoutTheirArraysOrWithOtherCounts) {
  AttentionPlan empty = example_plan<TypeParam>();
  empty.form.template emplace<TypeParam>();
  EXPECT_FALSE(validate(empty));
  AttentionPlan other = example_plan<TypeParam>();
  ++other.counts.full_tiles;
  const auto valid = validate(other);
  ASSERT_FALSE(valid);
  EXPECT_THAT(valid.error().message, StartsWith("counts: "));
}

TEST(SegmentPlan, HasTheExampleOfItsHeader) {
  const AttentionPlan plan = example_plan<SegmentPlan>(256, 1);
  EXPECT_THAT(
      to_text(plan),
      HasSubstr("work tile 0: batch 0 head 0 q_tile 1, 2 tiles: full [0, 1), bitmap 0 [1, 2)\n"
                "work tile 1: batch 0 head 0 q_tile 0, 1 tiles: bitmap 0 [0, 1)\n"));
}

TEST(ClosedFormPlan, HasTheExampleOfItsHeader) {
  const AttentionPlan plan = example_plan<ClosedFormPlan>();
  const auto& form = std::get<ClosedFormPlan>(plan.form);
  EXPECT_EQ(form.closed_forms.size(), 1U);
  EXPECT_TRUE(form.borders.empty());
  EXPECT_EQ(form.num_splits, 1);
}

struct UnknownForm {};

template <class Form>
concept IsValidated = requires(const PlanHeader& header, const Form& form) {
  validate(header, form);
};
template <class Form>
concept HasText = requires(const PlanHeader& header, const Form& form) {
  to_text(header, form, std::int64_t{8});
};
template <class Form>
concept CountsWorkTiles = requires(const PlanHeader& header, const Form& form) {
  count_work_tiles(header, form);
};
template <class Form>
concept HasSize = requires(const Form& form) {
  size_bytes(form);
};
template <class Form>
concept IsCombined = requires(const PlanHeader& header, const Form& form) {
  combined_rows(header, form);
};

// The visits of a plan compile only because each form has these functions, and none is generic.
TEST(PlanFormFunctions, TakeNoUnknownForm) {
  static_assert(IsValidated<SegmentPlan> && !IsValidated<UnknownForm>);
  static_assert(HasText<SegmentPlan> && !HasText<UnknownForm>);
  static_assert(CountsWorkTiles<SegmentPlan> && !CountsWorkTiles<UnknownForm>);
  static_assert(HasSize<SegmentPlan> && !HasSize<UnknownForm>);
  static_assert(IsCombined<SegmentPlan> && !IsCombined<UnknownForm>);
}

}  // namespace
}  // namespace fdma
