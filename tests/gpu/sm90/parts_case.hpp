// Attention calls with parts of a score besides softcap and key bias, with their reference in float64:
// biases of pairs, slopes, relative tables, sinks, dropout.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "backend/fixture_array.hpp"
#include "backend/mask_cases.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "gpu_fixture.hpp"

namespace fdma::gpu_test {

/// A tensor of random values that its type represents, in device memory.
class PartTensor {
 public:
  PartTensor(GpuFixture& fixture, DType dtype, std::vector<std::int64_t> extents,
             std::uint64_t seed, double scale = 1);

  /// The value at these indices; an axis of extent 1 has the same value everywhere.
  double at(std::initializer_list<std::int64_t> indices) const {
    return values_[static_cast<std::size_t>(offset(indices))];
  }
  void set(std::initializer_list<std::int64_t> indices, double value);
  /// Copies values that were set to the device.
  void upload();
  /// Fills the memory with bytes 0xff, which are NaN.
  void poison();
  void fetch();

  MutableTensorView view() const { return memory_.view(dtype_, extents_); }
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& extents() const { return extents_; }
  const std::vector<double>& values() const { return values_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  std::int64_t offset(std::initializer_list<std::int64_t> indices) const;

 private:
  DType dtype_;
  std::vector<std::int64_t> extents_;
  std::vector<double> values_;
  std::vector<unsigned char> bytes_;
  testing::FixtureArray<unsigned char> memory_;
};

/// What a call has besides q, k and v. Extents of 0: the call does not have the part.
struct PartsChoice {
  DType dtype = DType::bfloat16;
  std::int32_t head_dim = 128, heads_q = 4, heads_kv = 2;
  std::int64_t batch = 2;
  float softcap = 0;
  bool has_key_bias = false;
  std::vector<std::int64_t> bias = {};  ///< [batch|1, heads_q|heads_kv|1, q_len|1, kv_len]
  DType bias_dtype = DType::float32;
  std::vector<std::int64_t> alibi = {};     ///< [heads_q] or [batch, heads_q]
  std::vector<std::int64_t> relative = {};  ///< [heads_q|1, left + 1 + right]
  std::int64_t relative_left = 0;
  std::vector<std::int64_t> sinks = {};  ///< [heads_q] or [batch, heads_q, q_len]
  DType sinks_dtype = DType::float32;
  double sinks_scale = 1;
  Dropout dropout = {};
  bool seeds_on_device = false;  ///< the call reads them from memory
  bool has_dlse = true;
  bool wants_out_low = false;
  bool deterministic = false;
  DeltaSource delta_source = DeltaSource::automatic;
  ColumnMode columns = ColumnMode::automatic;
  PlanForm form = PlanForm::segments;
  SplitMode split = SplitMode::automatic;
  std::uint64_t seed = 1;
};
std::string to_string(const PartsChoice& choice);

/// Tensors of a call, and its results beside those of the definition.
class PartsCase {
 public:
  /// Borrows the fixture and the mask.
  PartsCase(GpuFixture& fixture, const testing::MaskCase& mask, PartsChoice choice);

  /// Make the plan, run the pass and compare; say what is wrong, empty if nothing is. The error of a
  /// result, root mean square, may be a few times that of rounding once, over that of the result.
  /// backward_error follows forward_error.
  std::string forward_error();
  std::string backward_error();

  /// The plan by which the last pass ran.
  const AttentionPlan& plan() const { return *plan_; }
  /// The bytes of all gradients.
  std::vector<unsigned char> gradient_bytes() const;

  PartTensor& bias() { return *bias_; }
  PartTensor& dbias() { return *dbias_; }
  PartTensor& sinks() { return *sinks_; }

 private:
  struct Reference;

  ScoreSpec score() const;
  Dropout call_dropout() const;
  AttentionPlan make_plan_for(Direction direction) const;
  Reference reference() const;
  using Owned = std::unique_ptr<PartTensor>;
  Owned made(DType dtype, const std::vector<std::int64_t>& extents, double scale = 1);

  GpuFixture& fixture_;
  const testing::MaskCase& mask_;
  PartsChoice choice_;
  AttentionShape shape_;
  std::unique_ptr<AttentionPlan> plan_;
  testing::FixtureArray<std::uint64_t> seeds_;
  std::uint64_t seed_;
  Owned q_, k_, v_, dout_, out_, out_low_, lse_, dlse_, dq_, dk_, dv_;
  // Null where the call does not have the part.
  Owned key_bias_, bias_, alibi_, relative_, sinks_, dkey_bias_, dbias_, drelative_, dsinks_;
};

}  // namespace fdma::gpu_test
