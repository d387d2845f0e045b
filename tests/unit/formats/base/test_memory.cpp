// Tests the questions that are asked before memory is taken. A limit of the address space, set in a
// child process, stands for a machine with less memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>

#include "cell_oracle.hpp"
#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/interop/hf_mask.hpp"
#include "fdma/formats/set_algebra.hpp"

namespace fdma {
namespace {

using testing::block_mask_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

bool has_address_sanitizer() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  return false;
#endif
}

/// Returns what `text` gives in a child process that may take `bytes` more.
std::string with_memory(std::int64_t bytes, const std::function<std::string()>& text) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + bytes);
    setrlimit(RLIMIT_AS, &limit);
    const std::string result = text();
    const bool is_written =
        write(ends[1], result.data(), result.size()) == static_cast<ssize_t>(result.size());
    _exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  std::string result(4096, '\0');
  std::size_t size = 0;
  for (ssize_t count = 1; count > 0;
       size += static_cast<std::size_t>(std::max<ssize_t>(count, 0))) {
    count = read(ends[0], result.data() + size, result.size() - size);
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  result.resize(size);
  return result;
}

template <class T>
std::string message_of(const Result<T>& result) {
  if (result) return "no error";
  return result.error().code == ErrorCode::out_of_memory ? result.error().message : "another error";
}

BlockMask causal_mask(std::int64_t n) {
  ParametricMask mask;
  mask.q_len = mask.kv_len = mask.kv_end = n;
  mask.right = 0;
  BlockMask result;
  result.block = {128, 128};
  result.shape.q_lens = result.shape.kv_lens = {n};
  result.group_of = {0};
  result.groups = std::vector<ParametricMask>{mask};
  return result;
}

TEST(AvailableMemory, IsThatOfTheMachineOrLess) {
  std::int64_t total = 0;
  std::string word;
  std::ifstream meminfo("/proc/meminfo");
  meminfo >> word >> total;
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LE(available_memory_bytes(), total * 1024);
}

TEST(AvailableMemory, HeedsTheLimitOfTheAddressSpace) {
  if (has_address_sanitizer()) GTEST_SKIP() << "sanitizers take the address space";
  const std::string text =
      with_memory(kGiB, [] { return std::to_string(available_memory_bytes()); });
  EXPECT_GT(std::stoll(text), kGiB / 2);
  EXPECT_LE(std::stoll(text), kGiB);
}

TEST(CheckMemory, SaysWhatIsNeededAndWhatThereIs) {
  EXPECT_TRUE(check_memory(std::int64_t{64} << 20, "pixels"));
  const std::string text = message_of(check_memory(std::int64_t{1} << 60, "pixels"));
  EXPECT_THAT(text, StartsWith("pixels: not enough memory: needs 1 EiB, available "));
}

TEST(CheckMemory, CountsWhatThreadsTakeTogether) {
  MemoryBudget budget("columns");
  const std::int64_t half = available_memory_bytes() / 2;
  EXPECT_TRUE(budget.take(half));
  budget.give_back(half);
  EXPECT_TRUE(budget.take(half));
  EXPECT_THAT(message_of(budget.take(4 * half)), StartsWith("columns: not enough memory: needs "));
  EXPECT_THAT(message_of(budget.take(std::int64_t{1} << 62)), HasSubstr("not enough memory"));
  EXPECT_THAT(message_of(budget.take(std::int64_t{1} << 62)), HasSubstr("not enough memory"));
}

TEST(ConversionBytes, AreThoseOfTheResult) {
  std::mt19937 rng(5);
  for (int i = 0; i < 60; ++i) {
    const BlockMask origin = block_mask_of(testing::random_cells(rng, 1 + i * 5, 200 - 3 * i),
                                           testing::random_block(rng));
    const SegmentMask segments = segment_of_group(origin, 0, origin.block);
    for (const MaskFormat format : kMaskFormats) {
      if (format == MaskFormat::segment || format == MaskFormat::parametric) continue;
      const BlockMask converted = *convert(origin, format, origin.block);
      const std::int64_t bitmaps = std::visit(
          [](const auto& groups) {
            if constexpr (requires { groups[0].bitmaps; }) {
              return 8 * static_cast<std::int64_t>(groups[0].bitmaps.size());
            } else {
              return std::int64_t{0};
            }
          },
          converted.groups);
      EXPECT_EQ(conversion_bytes(segments, format).result, converted.size_bytes() - bitmaps)
          << to_string(format);
    }
  }
}

// 2^31 - 1 keys take 16 GiB of offsets and 16 GiB of intervals, and 32 GiB while they are made.
TEST(ConversionBytes, AreAskedForBeforeTheyAreTaken) {
  if (has_address_sanitizer()) GTEST_SKIP() << "sanitizers take the address space";
  const BlockMask mask = causal_mask(kMaxLength);
  const std::pair<MaskFormat, const char*> formats[] = {
      {MaskFormat::columns, "columns: not enough memory: needs 64 GiB, available "},
      {MaskFormat::dense, "dense: not enough memory: needs 512 PiB, available "},
      {MaskFormat::bitset, "bitset: not enough memory: needs 64 TiB, available "},
      {MaskFormat::bcsr, "bcsr: not enough memory: needs 1 PiB, available "}};
  for (const auto& [format, expected] : formats) {
    const std::string text =
        with_memory(2 * kGiB, [&] { return message_of(convert(mask, format, mask.block)); });
    EXPECT_THAT(text, StartsWith(expected));
  }
}

// Segments of the result are counted while they come.
TEST(Segments, AreAskedForBeforeTheyAreTaken) {
  if (has_address_sanitizer()) GTEST_SKIP() << "sanitizers take the address space";
  constexpr std::int32_t kTiles = 1 << 12;
  constexpr BlockShape kBlock{16, 16};
  const MaskShape shape{1, 1, {16 * kTiles}, {16 * kTiles}};
  SegmentBuilder builder(16 * kTiles, 16 * kTiles, kBlock);
  std::vector<TileSegment> segments;
  for (std::int32_t row = 0; row < kTiles; ++row) {  // 4M segments, 100 MB
    segments.clear();
    for (std::int32_t tile = row % 2; tile < kTiles; tile += 2) {
      segments.push_back({tile, tile + 1, 0, 0, SegmentKind::full, 0});
    }
    builder.add_rows(row, 1, segments);
  }
  const BlockMask mask = make_block_mask(shape, kBlock, {builder.finish()});
  EXPECT_EQ(with_memory(100 << 20, [&] { return message_of(complement(mask)); }),
            "set operation: not enough memory for the segments of the result; larger blocks need "
            "fewer");
  EXPECT_EQ(with_memory(kGiB, [&] { return message_of(complement(mask)); }), "no error");
}

TEST(ConversionBytes, AreAskedForByInterop) {
  if (has_address_sanitizer()) GTEST_SKIP() << "sanitizers take the address space";
  const std::string text = with_memory(kGiB, [&] {
    HfMaskExportOptions options;
    options.max_bytes = 100 * kGiB;
    return message_of(hf_mask_from_block_mask(causal_mask(65536), options));
  });
  EXPECT_THAT(text, StartsWith("attention_mask: not enough memory: needs 4.5 GiB, available "));
}

}  // namespace
}  // namespace fdma
