// Overloads: one function object of several, for std::visit.
#pragma once

namespace fdma {

/// Calls the function that takes the argument's type. Without a generic function among them, an
/// alternative of a variant that none of them takes does not compile.
///
/// Example     std::visit(Overloads{[](int) { return 1; }, [](float) { return 2; }}, variant)
template <class... Functions>
struct Overloads : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloads(Functions...) -> Overloads<Functions...>;

}  // namespace fdma
