#include "interop/interop_format.hpp"

namespace fdma::maskc {

#define FDMA_INTEROP(name) const InteropFormat& name##_interop_format();
#include "interop/interop_list.hpp"
#undef FDMA_INTEROP

const std::vector<const InteropFormat*>& all_interop_formats() {
  static const std::vector<const InteropFormat*> formats{
#define FDMA_INTEROP(name) &name##_interop_format(),
#include "interop/interop_list.hpp"
#undef FDMA_INTEROP
  };
  return formats;
}

const InteropFormat* find_interop_format(std::string_view name) {
  for (const InteropFormat* format : all_interop_formats()) {
    if (format->name == name) return format;
  }
  return nullptr;
}

std::vector<std::string_view> interop_format_names() {
  std::vector<std::string_view> names;
  for (const InteropFormat* format : all_interop_formats()) names.push_back(format->name);
  return names;
}

CommandFailure interop_failure(const Error& error) {
  const bool is_wrong =
      error.code == ErrorCode::invalid_argument || error.code == ErrorCode::shape_mismatch;
  return {is_wrong ? ExitCode::mask_wrong : exit_code_of(error.code), error.message};
}

}  // namespace fdma::maskc
