// A borrowed tensor: pointer, extents, strides, dtype, device.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace fdma {

/// Element types that cross FDMA's interface.
enum class DType : std::uint8_t {
  boolean,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
};

/// Bytes of one element.
int size_bytes(DType dtype);
/// For example "int32".
std::string_view to_string(DType dtype);

enum class Device : std::uint8_t { cpu, cuda };

inline constexpr int kMaxRank = 4;

/// A tensor that somebody else owns: TensorView, whose elements are read, and MutableTensorView,
/// whose elements the callee writes. The second converts to the first.
///
/// Shapes      rank 0 to 4; extents and strides in elements; entries past rank are 1 and 0
/// Invariants  data may be null only if an extent is 0
///             two elements of a MutableTensorView never share an address
/// Owner       owns nothing; the storage must outlive every use
template <class Data>
struct BasicTensorView {
  Data* data = nullptr;
  DType dtype = DType::float32;
  Device device = Device::cpu;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> extents{1, 1, 1, 1};
  std::array<std::int64_t, kMaxRank> strides{0, 0, 0, 0};

  std::int64_t num_elements() const;
  /// True iff the elements lie row-major without gaps.
  bool is_contiguous() const;

  /// The same elements, to be read. A MutableTensorView converts to this as well.
  BasicTensorView<const void> view() const { return with_data(static_cast<const void*>(data)); }
  template <class Other>
  requires(std::is_const_v<Other> && !std::is_const_v<Data>) operator BasicTensorView<Other>()
      const {
    return view();
  }
  /// A view of other elements, with the same type, extents and strides.
  template <class Other>
  BasicTensorView<Other> with_data(Other* other) const {
    return {other, dtype, device, rank, extents, strides};
  }
};
using TensorView = BasicTensorView<const void>;
using MutableTensorView = BasicTensorView<void>;

extern template struct BasicTensorView<const void>;
extern template struct BasicTensorView<void>;

/// A contiguous row-major host view over `data` with the given extents.
TensorView make_contiguous_view(const void* data, DType dtype, int rank,
                                const std::int64_t* extents);
MutableTensorView make_contiguous_mutable_view(void* data, DType dtype, int rank,
                                               const std::int64_t* extents);

}  // namespace fdma
