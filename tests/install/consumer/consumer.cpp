// consumer <file>: compiles a mask, writes it, reads it back and compares. Uses installed headers
// and libraries only.
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>

#include "fdma/formats/convert.hpp"
#include "fdma/io/mask_file.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"

namespace {

fdma::Result<std::string> round_trip(const std::string& path) {
  FDMA_TRY(const fdma::MaskExpr expr,
           fdma::parse_mask("causal & documents(lengths=@len) & (window(256) | sink(4))"));
  const std::int32_t lengths[] = {700, 1300, 48};
  const std::int64_t num_documents = 3;
  const fdma::Tables tables{
      {"len", fdma::make_contiguous_view(lengths, fdma::DType::int32, 1, &num_documents)}};
  fdma::MaskShape shape;
  shape.q_lens = {2048};
  shape.kv_lens = {2048};
  FDMA_TRY(fdma::BlockMask mask, fdma::compile(expr, tables, shape));

  FDMA_TRY_VOID(fdma::write_masks(path, {{"packed", mask}}));
  FDMA_TRY(const fdma::BlockMask again, fdma::read_mask(path, "packed"));
  if (!fdma::equal_cells(mask, again)) {
    return fdma::Error{fdma::ErrorCode::internal, "the mask read differs from the one written"};
  }
  return std::to_string(again.size_bytes()) + " bytes stored, equal after writing and reading";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: consumer <file>\n";
    return 2;
  }
  const auto result = round_trip(argv[1]);
  if (!result) {
    std::cerr << result.error().message << "\n";
    return 1;
  }
  std::cout << *result << "\n";
  return 0;
}
