// The arrays of the newer parts of a score: biases of pairs, slopes, relative tables, sinks and
// dropout, with their gradients, on a backend fixture.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attention_reference.hpp"
#include "backend/backend_fixture.hpp"
#include "backend/fixture_array.hpp"
#include "backend/mask_cases.hpp"
#include "backend/tensor_error.hpp"

namespace fdma::testing {

/// The parts of a case, and the shapes and types of their arrays.
struct PartChoice {
  enum class Heads : std::uint8_t { each, groups, one };

  bool has_bias = false, is_bias_16 = false;  ///< of q's type if that has 16 bits
  bool is_bias_per_element = true, is_bias_per_row = true;
  Heads bias_heads = Heads::each;
  double bias_scale = 1;
  /// That of some elements, and of the whole row 3.
  double hidden = -std::numeric_limits<double>::infinity();
  bool hides_row = true;
  bool has_slopes = false, are_slopes_per_element = false;
  bool has_relative = false, is_relative_per_head = true;
  std::int64_t left = 20, right = 7;
  bool has_sinks = false, are_sinks_16 = false, are_sinks_per_row = false;
  double dropout_rate = 0;
  bool is_seed_in_memory = false;  ///< the call reads seed and offset from memory of the fixture

  bool has_any() const {
    return has_bias || has_slopes || has_relative || has_sinks || dropout_rate > 0;
  }
  /// The parts, and their names with the shapes of arrays.
  ScoreSpec add_to(ScoreSpec score) const;
  std::string text() const;
};

/// One of the combinations of parts that cases run, each with other shapes: `index` in [0,
/// kNumPartChoices). Every part comes alone and every pair of parts comes together.
PartChoice part_choice(int index);
inline constexpr int kNumPartChoices = 20;

/// An array of any shape with gaps between rows, and canaries around it.
class PartTensor {
 public:
  /// `gap`: elements between rows along the last axis. Every element is NaN until it is set.
  PartTensor(BackendFixture& fixture, DType dtype, const std::vector<std::int64_t>& extents,
             std::int64_t gap);
  ~PartTensor() { fixture_.release(memory_); }
  PartTensor(const PartTensor&) = delete;
  PartTensor& operator=(const PartTensor&) = delete;

  MutableTensorView view() const;
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& extents() const { return extents_; }
  std::int64_t num_elements() const;
  /// Elements by their index in row-major order without gaps.
  double get(std::int64_t index) const;
  void set(std::int64_t index, double value);
  void poison(unsigned char byte);
  void upload();
  void fetch();
  /// Says what was written besides elements, or to an input; empty if nothing was.
  std::string stray_writes(bool is_output) const;
  std::vector<unsigned char> bytes() const;

 private:
  std::int64_t offset(std::int64_t index) const;

  BackendFixture& fixture_;
  DType dtype_;
  std::vector<std::int64_t> extents_;
  std::int64_t row_stride_;
  std::vector<unsigned char> uploaded_, image_;
  unsigned char* memory_;
};

/// The arrays of one case. Elements that no pair of the mask reads are NaN. Some elements of a bias,
/// and all of its row 3, are PartChoice::hidden; some sinks are -inf, and some far above all logits.
class PartArrays {
 public:
  PartArrays(BackendFixture& fixture, const MaskCase& mask, const AttentionShape& shape,
             const PartChoice& choice, std::uint64_t seed);

  /// Adds the arrays to the tensors and options of a call.
  void add_to(AttentionTensors& tensors) const;
  void add_to(BackwardTensors& tensors, bool wants_gradients) const;
  template <class Options>
  void add_to(Options& options) const {
    options.relative_left = choice_.has_relative ? choice_.left : 0;
    options.dropout = dropout();
  }
  Dropout dropout() const;

  /// Adds the parts of these rows of a head to its problem.
  void add_to(reference::HeadProblem& head, std::int64_t b, std::int64_t h,
              const std::vector<std::int32_t>& rows) const;

  /// The bias, to be changed by a test.
  PartTensor& bias() { return *bias_; }
  PartTensor& sinks() { return *sinks_; }

  // ---- gradients

  void poison(unsigned char byte);
  void fetch();
  std::string stray_writes() const;
  std::vector<unsigned char> gradient_bytes() const;

  /// The sums that the gradients have to be.
  class Expected {
   public:
    explicit Expected(const PartArrays& arrays);
    /// Adds those of all rows of a head, of which `cells` are attended.
    void add(std::int64_t b, std::int64_t h, const Cells& cells,
             const reference::HeadGradients& exact, const reference::HeadGradients& in_own_type);
    /// Says what is wrong with the gradients that were fetched.
    std::string compare() const;

   private:
    struct Sums {
      std::vector<double> exact, in_own_type;
      std::vector<char> is_live;
    };
    const PartArrays& arrays_;
    Sums bias_, relative_, sinks_;
  };

 private:
  std::int64_t bias_index(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) const;
  std::int64_t sink_index(std::int64_t b, std::int64_t h, std::int64_t q) const;
  std::int64_t relative_index(std::int64_t h, std::int64_t i) const;

  AttentionShape shape_;
  PartChoice choice_;
  std::uint64_t seed_;
  std::unique_ptr<PartTensor> bias_, slopes_, relative_, sinks_, dbias_, drelative_, dsinks_;
  std::unique_ptr<FixtureArray<std::uint64_t>> seed_memory_;
};

}  // namespace fdma::testing
