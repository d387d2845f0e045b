// Cases of merge: attention over disjoint sets of keys, and what it merges to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend_tensor.hpp"
#include "fdma/kernels/merge.hpp"

namespace fdma::testing {

enum class Sinks : std::uint8_t { none, per_head, per_row };

struct MergeProblem {
  DType dtype = DType::float32;
  int num_parts = 2;
  std::int64_t batch = 2;
  std::int64_t q_len = 23;
  std::int64_t heads = 3;
  std::int64_t kv_len = 40;
  std::int64_t head_dim_v = 64;
  Layout layout = Layout::rows;
  Sinks sinks = Sinks::none;
  bool wants_lse = true;
};
std::string to_string(const MergeProblem& problem);

/// Parts of float64 attention over random sets of keys, rounded to the dtype, in the memory of a
/// fixture. In each block of seven rows one row sees no key, one sees keys of the first part alone,
/// and the others miss a part now and then. The out of a part without keys is NaN.
class MergeCase {
 public:
  MergeCase(BackendFixture& fixture, const MergeProblem& problem, std::uint64_t seed);
  ~MergeCase();

  MergeTensors tensors() const;
  /// Says what is wrong with the results; empty if nothing is. out and lse agree with the formula
  /// of merge in float64, and with float64 attention over all keys.
  std::string check();
  /// The bytes of out and lse.
  std::vector<unsigned char> result_bytes();
  /// Sets lse of a part in one row, for what is no result of attention.
  void set_lse(int part, std::int64_t b, std::int64_t q, std::int64_t h, double value);
  double out_at(std::int64_t b, std::int64_t q, std::int64_t h, std::int64_t d) const;
  double lse_at(std::int64_t b, std::int64_t q, std::int64_t h) const;
  void fetch();

 private:
  struct Part {
    std::unique_ptr<BackendTensor> out, lse;
  };

  void make_head(std::int64_t b, std::int64_t h, std::uint64_t seed);
  double sink_at(std::int64_t b, std::int64_t q, std::int64_t h) const;
  std::string check_row(std::int64_t b, std::int64_t q, std::int64_t h) const;
  std::size_t row_index(std::int64_t b, std::int64_t q, std::int64_t h) const {
    return static_cast<std::size_t>((b * p_.heads + h) * p_.q_len + q);
  }
  TensorView cropped(TensorView view) const;

  BackendFixture& fixture_;
  MergeProblem p_;
  std::vector<Part> parts_;
  std::vector<MergePart> views_;
  std::unique_ptr<BackendTensor> sinks_, out_, lse_;
  std::vector<double> whole_out_, whole_lse_;  ///< attention over all keys, without sinks
};

/// Problems of every dtype, layout, alignment and kind of sinks, with 1 to kMaxMergeParts parts.
std::vector<MergeProblem> merge_problems();

}  // namespace fdma::testing
