// Tensors of attention in HDF5: queries, keys, values and biases in, outputs out.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma {

/// Type and extents of a tensor, without its values.
struct TensorSpec {
  DType dtype = DType::float32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> extents{1, 1, 1, 1};

  std::int64_t num_elements() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// "float16 [1, 128, 8, 64]"
std::string to_string(const TensorSpec& spec);

/// A contiguous row-major tensor on the host that owns its elements.
///
/// Owner       owns its elements, 64 B aligned; views borrow them
class OwnedTensor {
 public:
  OwnedTensor() = default;
  /// Elements are zero. Errors: invalid_argument (rank, an extent below 0), out_of_memory.
  static Result<OwnedTensor> zeros(const TensorSpec& spec);

  const TensorSpec& spec() const { return spec_; }
  std::int64_t size_bytes() const { return spec_.num_elements() * fdma::size_bytes(spec_.dtype); }
  void* data() { return data_.get(); }
  const void* data() const { return data_.get(); }
  TensorView view() const;
  MutableTensorView mutable_view();

 private:
  struct Free {
    void operator()(void* data) const noexcept;
  };
  TensorSpec spec_;
  std::unique_ptr<void, Free> data_;
};

/// Type and extents of dataset `dataset` of the file at `path`. No value is read.
///
/// Accepts     little-endian float32, float16 (IEEE half), and bfloat16: uint16 with attribute
///             dtype = "bfloat16", or a floating type of that layout; up to 4 dimensions
/// Errors      io: absent file or dataset; the message lists what the group holds
///             corrupt_file: not HDF5, truncated, refused storage (external, virtual, links out of
///             the file), values that the file does not hold
///             invalid_argument: another type; shape_mismatch: the rank
Result<TensorSpec> describe_tensor(const std::string& path, const std::string& dataset);

/// True iff the file has an object at that path. Errors: as describe_tensor.
Result<bool> has_object(const std::string& path, const std::string& object);

/// Reads the whole dataset. `expected` is the result of describe_tensor: a file that was replaced
/// since is an error. The bytes in the file are compared with it before memory is taken.
///
/// Errors      those of describe_tensor; shape_mismatch (not as expected), out_of_memory
Result<OwnedTensor> read_tensor(const std::string& path, const std::string& dataset,
                                const TensorSpec& expected);

/// A number or a text beside the data.
struct FileAttribute {
  std::string name;
  std::variant<std::string, double, std::int64_t> value;
};

/// One tensor of a file.
struct NamedTensor {
  std::string name;
  TensorView tensor;
};

/// Writes contiguous tensors of float32, float16 and bfloat16 as datasets /<name> of a new file,
/// and the attributes on its root group. Data is little-endian and contiguous, texts have fixed
/// length, bfloat16 is uint16 with attribute dtype = "bfloat16". Equal input gives equal bytes.
/// `path` is replaced only when everything is on disk, as by write_masks.
///
/// Errors      invalid_argument (names, types, a view that is not contiguous or not on the host),
///             io (the reason of the operating system), out_of_memory
Result<void> write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                           const std::vector<FileAttribute>& attributes = {});

}  // namespace fdma
