// The main function of test_io. The program is also the child process of its own IsolatedReaders.
#include <gmock/gmock.h>

#include "fdma/io/isolated_reader.hpp"

int main(int argc, char** argv) {
  if (const auto code = fdma::serve_isolated_reads(argc, argv)) return *code;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
