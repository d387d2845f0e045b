// Golden tests of the language front end: what each specification under tests/golden/diagnostics
// answers. FDMA_REBASE_GOLDEN=1 rewrites the answers (read the difference before committing it).
//
// A file holds cases: a line "==== title", the specification, a line "----", the answer: the
// diagnostics or, for a specification without errors, its canonical text and its dump.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "fdma/masks/parse.hpp"

namespace fdma {
namespace {

struct GoldenCase {
  std::string title;
  std::string spec;
  std::string answer;
};

std::vector<GoldenCase> read_cases(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<GoldenCase> cases;
  std::string* part = nullptr;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("==== ")) {
      cases.push_back({line.substr(5), "", ""});
      part = &cases.back().spec;
    } else if (line == "----" && !cases.empty()) {
      part = &cases.back().answer;
    } else if (part != nullptr) {
      *part += line + "\n";
    }
  }
  for (GoldenCase& one : cases)
    if (!one.spec.empty()) one.spec.pop_back();
  return cases;
}

std::string answer_to(const std::string& spec) {
  std::vector<Diagnostic> diagnostics;
  const MaskExpr expr = parse_mask(spec, diagnostics);
  if (!diagnostics.empty()) return format_diagnostics(spec, "spec", diagnostics);
  return to_text(expr) + "\n" + dump(expr);
}

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(FDMA_SOURCE_DIR "/tests/golden/diagnostics"))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(DiagnosticsGolden, AnswersAreAsRecorded) {
  const bool is_rebase = std::getenv("FDMA_REBASE_GOLDEN") != nullptr;
  const auto files = golden_files();
  EXPECT_FALSE(files.empty());
  for (const auto& path : files) {
    std::string rebased;
    for (const GoldenCase& one : read_cases(path)) {
      const std::string answer = answer_to(one.spec);
      if (!is_rebase) {
        EXPECT_EQ(answer, one.answer) << path.filename() << ": " << one.title;
      }
      rebased += "==== " + one.title + "\n" + one.spec + "\n----\n" + answer;
    }
    if (is_rebase) std::ofstream(path) << rebased;
  }
}

}  // namespace
}  // namespace fdma
