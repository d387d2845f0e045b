// A plan as kernels for sm_90a read it: pointers into one allocation of device memory.
#pragma once

#include <cstdint>

#include "fdma/kernels/device_plan.hpp"

namespace fdma::sm90 {

/// The arrays of an AttentionPlan that the kernels read. Offsets count as in the plan.
struct PlanArrays {
  const WorkItem* items;
  const PlanSegment* segments;
  const uint4* bitmaps;  ///< 128 of 16 bytes a bitmap: the words of two threads each
  const std::int64_t* row_offsets;
  const Interval* row_intervals;
  const std::int64_t* column_tables;
  const std::int64_t* column_offsets;
  const Interval* column_intervals;
  const int2* lengths;  ///< {q_len, kv_len} of each batch element
  std::int32_t num_items;
};

}  // namespace fdma::sm90

namespace fdma {

struct DevicePlan::Impl {
  AttentionShape shape;
  ScoreSpec score;
  BlockShape tile;
  int device = 0;
  int num_multiprocessors = 0;
  void* memory = nullptr;
  std::int64_t size_bytes = 0;
  sm90::PlanArrays arrays{};

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();
};

}  // namespace fdma
