// Tests the calls that attention_forward refuses. The error names the argument, and nothing is
// written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "backend/attention_case.hpp"

namespace fdma {
namespace {

using testing::AttentionCase;
using ::testing::HasSubstr;
using testing::MaskCase;

class AttentionErrors : public ::testing::Test {
 protected:
  AttentionErrors()
      : mask_(testing::case_of("causal",
                               testing::make_cells(40, 50, [](auto q, auto k) { return k <= q; }),
                               {16, 16})),
        shape_(make_shape(mask_)),
        plan_(*make_plan(mask_.mask, shape_, {.key_bias = true})),
        attention_(shape_, {.key_bias = true}, {}) {}

  static AttentionShape make_shape(const MaskCase& mask) {
    AttentionShape shape = testing::shape_for(mask.mask, 2, 4, 2);
    shape.head_dim = 24;
    shape.head_dim_v = 16;
    shape.k_dtype = DType::bfloat16;
    return shape;
  }

  // Checks that the error names `named` and has this code, and that nothing was written.
  void expect_rejected(const char* named, ErrorCode code,
                       const std::function<void(AttentionTensors&)>& change,
                       const AttentionOptions& options = {}) {
    AttentionTensors tensors = attention_.tensors();
    change(tensors);
    attention_.out().fill(0x3c);
    attention_.lse().fill(0x3c);
    const auto ran = attention_forward(plan_, tensors, options);
    ASSERT_FALSE(ran.has_value()) << named;
    EXPECT_EQ(ran.error().code, code) << ran.error().message;
    EXPECT_THAT(ran.error().message, HasSubstr(named));
    for (const unsigned char byte : attention_.out().bytes()) ASSERT_EQ(byte, 0x3c) << named;
    for (const unsigned char byte : attention_.lse().bytes()) ASSERT_EQ(byte, 0x3c) << named;
  }

  MaskCase mask_;
  AttentionShape shape_;
  AttentionPlan plan_;
  AttentionCase attention_;
};

// A tensor of the call by name, with references to its fields.
struct TensorFields {
  const char* name;
  std::function<std::int64_t&(AttentionTensors&, int)> extent;
  std::function<std::int64_t&(AttentionTensors&, int)> stride;
  std::function<void(AttentionTensors&)> drop_data;
  std::function<DType&(AttentionTensors&)> dtype;
  std::function<int&(AttentionTensors&)> rank;
  std::function<Device&(AttentionTensors&)> device;
};

template <class Get>
TensorFields fields(const char* name, const Get& get) {
  return {name,
          [get](AttentionTensors& t, int i) -> std::int64_t& {
            return get(t).extents[static_cast<std::size_t>(i)];
          },
          [get](AttentionTensors& t, int i) -> std::int64_t& {
            return get(t).strides[static_cast<std::size_t>(i)];
          },
          [get](AttentionTensors& t) { get(t).data = nullptr; },
          [get](AttentionTensors& t) -> DType& { return get(t).dtype; },
          [get](AttentionTensors& t) -> int& { return get(t).rank; },
          [get](AttentionTensors& t) -> Device& { return get(t).device; }};
}

std::vector<TensorFields> four_dimensional() {
  return {fields("q", [](AttentionTensors& t) -> TensorView& { return t.q; }),
          fields("k", [](AttentionTensors& t) -> TensorView& { return t.kv.k; }),
          fields("v", [](AttentionTensors& t) -> TensorView& { return t.kv.v; }),
          fields("out", [](AttentionTensors& t) -> MutableTensorView& { return t.out; })};
}

std::vector<TensorFields> three_dimensional() {
  return {fields("key_bias", [](AttentionTensors& t) -> TensorView& { return t.key_bias; }),
          fields("lse", [](AttentionTensors& t) -> MutableTensorView& { return t.lse; })};
}

std::vector<TensorFields> all_tensors() {
  std::vector<TensorFields> all = four_dimensional();
  for (const TensorFields& tensor : three_dimensional()) all.push_back(tensor);
  return all;
}

TEST_F(AttentionErrors, GoodTensorsAreAccepted) {
  EXPECT_TRUE(attention_.run(plan_));
  EXPECT_EQ(attention_.compare(mask_), "");
}

TEST_F(AttentionErrors, RejectsNullData) {
  for (const TensorFields& tensor : four_dimensional()) {
    expect_rejected(tensor.name, ErrorCode::invalid_argument, tensor.drop_data);
  }
}

TEST_F(AttentionErrors, RejectsExtents) {
  for (const TensorFields& tensor : all_tensors()) {
    const bool is_4d = tensor.name != std::string("key_bias") && tensor.name != std::string("lse");
    const int length_axis = is_4d ? 1 : 2;
    for (int axis = 0; axis < (is_4d ? 4 : 3); ++axis) {
      expect_rejected(tensor.name, ErrorCode::shape_mismatch,
                      [&](AttentionTensors& t) { tensor.extent(t, axis) -= 1; });
      // A tensor may be longer along its length dimension only.
      if (axis == length_axis) continue;
      expect_rejected(tensor.name, ErrorCode::shape_mismatch,
                      [&](AttentionTensors& t) { tensor.extent(t, axis) += 1; });
    }
  }
}

TEST_F(AttentionErrors, RejectsRanks) {
  for (const TensorFields& tensor : all_tensors()) {
    for (const int change : {-1, 1}) {
      expect_rejected(tensor.name, ErrorCode::shape_mismatch,
                      [&](AttentionTensors& t) { tensor.rank(t) += change; });
    }
  }
}

TEST_F(AttentionErrors, RejectsTypesOtherThanThePlans) {
  for (const TensorFields& tensor : all_tensors()) {
    for (const DType dtype : {DType::float16, DType::float64}) {
      expect_rejected(tensor.name, ErrorCode::shape_mismatch,
                      [&](AttentionTensors& t) { tensor.dtype(t) = dtype; });
    }
  }
}

TEST_F(AttentionErrors, RejectsDevices) {
  for (const TensorFields& tensor : all_tensors()) {
    expect_rejected(tensor.name, ErrorCode::unsupported,
                    [&](AttentionTensors& t) { tensor.device(t) = Device::cuda; });
  }
}

TEST_F(AttentionErrors, RejectsALastStrideOtherThanOne) {
  for (const TensorFields& tensor : four_dimensional()) {
    for (const std::int64_t stride : {0, 2, -1}) {
      expect_rejected(tensor.name, ErrorCode::invalid_argument,
                      [&](AttentionTensors& t) { tensor.stride(t, 3) = stride; });
    }
  }
}

TEST_F(AttentionErrors, RejectsOutputsWhoseElementsShareAnAddress) {
  const auto out = fields("out", [](AttentionTensors& t) -> MutableTensorView& { return t.out; });
  const auto lse = fields("lse", [](AttentionTensors& t) -> MutableTensorView& { return t.lse; });
  for (int axis = 0; axis < 3; ++axis) {
    expect_rejected("out", ErrorCode::invalid_argument,
                    [&](AttentionTensors& t) { out.stride(t, axis) = 0; });
    expect_rejected("lse", ErrorCode::invalid_argument,
                    [&](AttentionTensors& t) { lse.stride(t, axis) = 0; });
    expect_rejected("out", ErrorCode::invalid_argument,
                    [&](AttentionTensors& t) { out.stride(t, axis) = 7; });
  }
}

TEST_F(AttentionErrors, RejectsABiasThatThePlanDoesNotHave) {
  expect_rejected("key_bias", ErrorCode::invalid_argument,
                  [](AttentionTensors& t) { t.key_bias = {}; });
  plan_.score.key_bias = false;
  expect_rejected("key_bias", ErrorCode::invalid_argument, [](AttentionTensors&) {});
}

TEST_F(AttentionErrors, RejectsASoftcapThatThePlanDoesNotHave) {
  AttentionOptions options;
  options.softcap = 30;
  expect_rejected(
      "softcap: is given, but the plan's score is key_bias", ErrorCode::invalid_argument,
      [](AttentionTensors&) {}, options);
  plan_.score.softcap = true;
  expect_rejected("softcap: is missing, but the plan's score is softcap+key_bias",
                  ErrorCode::invalid_argument, [](AttentionTensors&) {});
}

TEST_F(AttentionErrors, RejectsASoftcapOutsideItsRange) {
  plan_.score.softcap = true;
  AttentionOptions options;
  for (const float cap : {-30.0F, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 1e-13F, 1e13F}) {
    options.softcap = cap;
    expect_rejected(
        "softcap: expected a number from 1e-12 to 1e+12, got", ErrorCode::invalid_argument,
        [](AttentionTensors&) {}, options);
  }
}

TEST_F(AttentionErrors, RejectsWhatRoundingDidNotTake) {
  expect_rejected("out_low", ErrorCode::invalid_argument, [](AttentionTensors& t) {
    t.out_low = t.out;  // of float32
  });
}

TEST_F(AttentionErrors, RejectsPagedKeys) {
  expect_rejected("paged", ErrorCode::unsupported,
                  [](AttentionTensors& t) { t.kv.layout = KvLayout::paged; });
}

TEST_F(AttentionErrors, RejectsDataThatIsNotAligned) {
  expect_rejected("q", ErrorCode::invalid_argument,
                  [](AttentionTensors& t) { t.q.data = static_cast<const char*>(t.q.data) + 1; });
}

TEST_F(AttentionErrors, RejectsOptionsOutsideTheirRange) {
  AttentionOptions options;
  options.num_threads = -1;
  expect_rejected(
      "num_threads", ErrorCode::invalid_argument, [](AttentionTensors&) {}, options);
  options.num_threads = 1;
  for (const float scale :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    options.softmax_scale = scale;
    expect_rejected(
        "softmax_scale", ErrorCode::invalid_argument, [](AttentionTensors&) {}, options);
  }
}

TEST_F(AttentionErrors, RejectsPlansOfOtherBackends) {
  plan_.backend = Backend::sm90;
  expect_rejected("sm90", ErrorCode::unsupported, [](AttentionTensors&) {});
}

// The checks of this folder find what they look for.
TEST_F(AttentionErrors, OneWrongElementIsNoticed) {
  ASSERT_TRUE(attention_.run(plan_));
  ASSERT_EQ(attention_.compare(mask_), "");
  const double right = attention_.out().get(1, 20, 3, 5);
  attention_.out().set(1, 20, 3, 5, right + 2e-4);
  EXPECT_THAT(attention_.compare(mask_), HasSubstr("b 1, h 3, row 20"));
  attention_.out().set(1, 20, 3, 5, right);
  const double lse = attention_.lse().get(0, 7, 1);
  attention_.lse().set(0, 7, 1, 0, lse + 2e-4);
  EXPECT_THAT(attention_.compare(mask_), HasSubstr("b 0, h 1, row 7"));
  attention_.lse().set(0, 7, 1, 0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(attention_.compare(mask_), HasSubstr("b 0, h 1, row 7"));
}

}  // namespace
}  // namespace fdma
