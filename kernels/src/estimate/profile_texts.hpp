// The texts of estimate/profiles/, which cmake/embed_text.cmake compiles in.
#pragma once

#include <string_view>

namespace fdma {

extern const std::string_view kProfileH200, kProfileH100, kProfileCpu;

}  // namespace fdma
