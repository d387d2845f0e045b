// Makes plans with one fault each, which validate() must find.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "fdma/kernels/plan.hpp"

namespace fdma::testing {

struct Mutation {
  const char* what;
  std::function<void(AttentionPlan&)> change;
  ErrorCode code = ErrorCode::internal;
};

inline void expect_caught(const AttentionPlan& plan, const std::vector<Mutation>& mutations) {
  ASSERT_TRUE(validate(plan)) << validate(plan).error().message;
  for (const Mutation& mutation : mutations) {
    AttentionPlan changed = plan;
    mutation.change(changed);
    const auto valid = validate(changed);
    ASSERT_FALSE(valid) << mutation.what;
    EXPECT_EQ(valid.error().code, mutation.code) << mutation.what;
  }
}

}  // namespace fdma::testing
