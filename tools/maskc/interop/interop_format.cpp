#include "interop/interop_format.hpp"

namespace fdma::maskc {

#define FDMA_PEER(name) const PeerFormat& name##_peer_format();
#include "interop/interop_list.hpp"
#undef FDMA_PEER

const std::vector<const PeerFormat*>& all_peer_formats() {
  static const std::vector<const PeerFormat*> formats{
#define FDMA_PEER(name) &name##_peer_format(),
#include "interop/interop_list.hpp"
#undef FDMA_PEER
  };
  return formats;
}

const PeerFormat* find_peer_format(std::string_view name) {
  for (const PeerFormat* format : all_peer_formats()) {
    if (format->name == name) return format;
  }
  return nullptr;
}

std::vector<std::string_view> peer_format_names() {
  std::vector<std::string_view> names;
  for (const PeerFormat* format : all_peer_formats()) names.push_back(format->name);
  return names;
}

CommandFailure peer_failure(const Error& error) {
  const bool is_wrong =
      error.code == ErrorCode::invalid_argument || error.code == ErrorCode::shape_mismatch;
  return {is_wrong ? ExitCode::mask_wrong : exit_code_of(error.code), error.message};
}

}  // namespace fdma::maskc
