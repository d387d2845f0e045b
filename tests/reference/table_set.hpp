// Tables that own their elements, for tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fdma/masks/tables.hpp"

namespace fdma::reference {

/// Named arrays, stored contiguously in the element type asked for.
///
/// Example     TableSet set; set.add("len", DType::int32, {2}, {3, 5}); bind(expr, set.views(), ..)
/// Owner       owns the elements; views() borrow from the set, which must stay where it is
class TableSet {
 public:
  /// `values` in row-major order, each representable in `dtype` (boolean: 0 or 1; floating: the
  /// bits).
  void add(const std::string& name, DType dtype, const std::vector<std::int64_t>& extents,
           const std::vector<std::int64_t>& values);
  Tables views() const;
  bool contains(const std::string& name) const { return arrays_.contains(name); }
  /// "@len = int32 [2]: 3 5", one table a line, for messages of failing tests.
  std::string describe() const;

 private:
  struct Array {
    DType dtype;
    std::vector<std::int64_t> extents;
    std::vector<std::int64_t> values;
    std::vector<std::uint64_t> storage;  ///< 8-byte aligned bytes
  };
  std::map<std::string, Array> arrays_;
};

}  // namespace fdma::reference
