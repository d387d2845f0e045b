// Arrays of a machine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend_fixture.hpp"

namespace fdma::testing {

/// Memory of the machine with the contents of a host array, and back.
template <class T>
class MachineArray {
 public:
  MachineArray(AttentionMachine& machine, std::vector<T> values)
      : machine_(machine),
        values_(std::move(values)),
        memory_(machine.allocate(static_cast<std::int64_t>(values_.size() * sizeof(T)))) {
    machine_.write(memory_, bytes(), size());
  }
  ~MachineArray() { machine_.release(memory_); }
  MachineArray(const MachineArray&) = delete;
  MachineArray& operator=(const MachineArray&) = delete;

  void* data() const { return memory_; }
  void set(std::vector<T> values) {
    values_ = std::move(values);
    machine_.write(memory_, bytes(), size());
  }
  const std::vector<T>& fetch() {
    machine_.read(bytes(), memory_, size());
    return values_;
  }
  MutableTensorView view(DType dtype, const std::vector<std::int64_t>& extents) const {
    MutableTensorView made = make_contiguous_mutable_view(
        memory_, dtype, static_cast<int>(extents.size()), extents.data());
    made.device = machine_.device();
    return made;
  }

 private:
  unsigned char* bytes() { return reinterpret_cast<unsigned char*>(values_.data()); }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size() * sizeof(T)); }

  AttentionMachine& machine_;
  std::vector<T> values_;
  unsigned char* memory_;
};

}  // namespace fdma::testing
