// Arrays of a backend fixture.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend_fixture.hpp"

namespace fdma::testing {

/// Memory of a fixture with the contents of a host array; fetch() copies it back.
template <class T>
class FixtureArray {
 public:
  FixtureArray(BackendFixture& fixture, std::vector<T> values)
      : fixture_(fixture),
        values_(std::move(values)),
        memory_(fixture.allocate(static_cast<std::int64_t>(values_.size() * sizeof(T)))) {
    fixture_.write(memory_, bytes(), size());
  }
  ~FixtureArray() { fixture_.release(memory_); }
  FixtureArray(const FixtureArray&) = delete;
  FixtureArray& operator=(const FixtureArray&) = delete;

  void* data() const { return memory_; }
  void set(std::vector<T> values) {
    values_ = std::move(values);
    fixture_.write(memory_, bytes(), size());
  }
  const std::vector<T>& fetch() {
    fixture_.read(bytes(), memory_, size());
    return values_;
  }
  MutableTensorView view(DType dtype, const std::vector<std::int64_t>& extents) const {
    MutableTensorView made = make_contiguous_mutable_view(
        memory_, dtype, static_cast<int>(extents.size()), extents.data());
    made.device = fixture_.device();
    return made;
  }

 private:
  unsigned char* bytes() { return reinterpret_cast<unsigned char*>(values_.data()); }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size() * sizeof(T)); }

  BackendFixture& fixture_;
  std::vector<T> values_;
  unsigned char* memory_;
};

}  // namespace fdma::testing
