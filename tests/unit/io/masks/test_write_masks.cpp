// The file is long because it has a test for every way in which a write can fail or be interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/io/mask_file.hpp"
#include "fdma/io/pending_file.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_mask;
using testing::TemporaryFolder;
using ::testing::UnorderedElementsAre;

void expect_equal(const BlockMask& a, const BlockMask& b) {
  EXPECT_EQ(a.block, b.block);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.origin, b.origin);
  EXPECT_EQ(a.group_of, b.group_of);
  EXPECT_EQ(a.spec, b.spec);
  EXPECT_EQ(a.is_per_batch, b.is_per_batch);
  EXPECT_EQ(a.is_per_head, b.is_per_head);
  EXPECT_TRUE(a.groups == b.groups);
}

void expect_round_trip(const BlockMask& mask, const WriteOptions& options = {}) {
  const TemporaryFolder folder;
  const std::string path = folder.file("mask.h5");
  const auto written = write_masks(path, {{"m", mask}}, options);
  ASSERT_TRUE(written) << written.error().message;
  const auto read = read_mask(path);
  ASSERT_TRUE(read) << read.error().message;
  expect_equal(*read, mask);
  EXPECT_THAT(folder.names(), ElementsAre("mask.h5"));
}

class EveryFormat : public ::testing::TestWithParam<MaskFormat> {};
INSTANTIATE_TEST_SUITE_P(WriteMasks, EveryFormat, ::testing::ValuesIn(kMaskFormats),
                         [](const auto& p) { return std::string(to_string(p.param)); });

TEST_P(EveryFormat, RoundTripKeepsEverything) {
  expect_round_trip(make_mask(GetParam()));
  expect_round_trip(make_mask(GetParam()), WriteOptions{.compress = false});
}

TEST_P(EveryFormat, RoundTripKeepsWhatTheMaskWasWrittenWith) {
  for (const auto& [is_per_batch, is_per_head] :
       {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
    BlockMask mask = make_mask(GetParam());
    const std::string without = to_string(content_hash(mask));
    mask.is_per_batch = is_per_batch;
    mask.is_per_head = is_per_head;
    EXPECT_EQ(to_string(content_hash(mask)), without);
    const auto one =
        crop(mask, {0, mask.shape.max_q_len(), 0, mask.shape.max_kv_len(), 0, 1, 0, 1});
    ASSERT_TRUE(one) << one.error().message;
    EXPECT_FALSE(one->is_per_batch || one->is_per_head);
    BlockMask alone = *one;
    alone.is_per_batch = is_per_batch;
    alone.is_per_head = is_per_head;
    expect_round_trip(alone);
  }
}

TEST_P(EveryFormat, RoundTripOfLengthsPerElement) {
  BlockMask mask = make_mask(GetParam());
  mask.shape = {2, 2, {70, 40}, {100, 64}};
  mask.group_of = {0, 0, 1, 1};
  const auto first = testing::make_cells(70, 100, [](auto q, auto k) { return k <= q + 30; });
  const auto second = testing::make_cells(40, 64, [](auto q, auto k) { return k != q; });
  switch (GetParam()) {
    case MaskFormat::segment:
      mask.groups = std::vector{testing::segment_of(first, mask.block),
                                testing::segment_of(second, mask.block)};
      break;
    case MaskFormat::parametric:
      mask.groups =
          std::vector{testing::parametric_of(70, 100, 3), testing::parametric_of(40, 64, 9)};
      break;
    case MaskFormat::bitset:
      mask.groups = std::vector{testing::bitset_of(first, mask.block),
                                testing::bitset_of(second, mask.block)};
      break;
    case MaskFormat::bcsr:
      mask.groups =
          std::vector{testing::bcsr_of(first, mask.block), testing::bcsr_of(second, mask.block)};
      break;
    case MaskFormat::columns:
      mask.groups = std::vector{testing::columns_of(first), testing::columns_of(second)};
      break;
    case MaskFormat::dense:
      mask.groups = std::vector{testing::dense_of(first), testing::dense_of(second)};
      break;
  }
  expect_round_trip(mask);
}

TEST_P(EveryFormat, RoundTripOfLengthsZero) {
  for (const auto& [q_len, kv_len] : {std::pair{0, 0}, {0, 20}, {20, 0}, {1, 1}}) {
    BlockMask mask = make_mask(GetParam());
    mask.shape = {1, 1, {q_len}, {kv_len}};
    mask.group_of = {0};
    const auto cells = testing::make_cells(q_len, kv_len, [](auto, auto) { return true; });
    switch (GetParam()) {
      case MaskFormat::segment:
        mask.groups = std::vector{testing::segment_of(cells, mask.block)};
        break;
      case MaskFormat::parametric:
        mask.groups = std::vector{testing::parametric_of(q_len, kv_len, 3)};
        break;
      case MaskFormat::bitset:
        mask.groups = std::vector{testing::bitset_of(cells, mask.block)};
        break;
      case MaskFormat::bcsr:
        mask.groups = std::vector{testing::bcsr_of(cells, mask.block)};
        break;
      case MaskFormat::columns:
        mask.groups = std::vector{testing::columns_of(cells)};
        break;
      case MaskFormat::dense:
        mask.groups = std::vector{testing::dense_of(cells)};
        break;
    }
    expect_round_trip(mask);
  }
}

TEST_P(EveryFormat, EqualMasksGiveEqualBytes) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_masks(folder.file("a.h5"), {{"m", make_mask(GetParam())}}));
  ASSERT_TRUE(write_masks(folder.file("b.h5"), {{"m", make_mask(GetParam())}}));
  EXPECT_EQ(testing::read_bytes(folder.file("a.h5")), testing::read_bytes(folder.file("b.h5")));
}

TEST(WriteMasks, CompressesLargeArrays) {
  BlockMask mask = make_mask(MaskFormat::dense);
  mask.shape = {1, 1, {2000}, {3000}};
  mask.group_of = {0};
  mask.groups = std::vector{
      testing::dense_of(testing::make_cells(2000, 3000, [](auto q, auto k) { return k <= q; }))};
  expect_round_trip(mask);
  const TemporaryFolder folder;
  ASSERT_TRUE(write_masks(folder.file("small.h5"), {{"m", mask}}));
  ASSERT_TRUE(write_masks(folder.file("large.h5"), {{"m", mask}}, WriteOptions{.compress = false}));
  EXPECT_LT(testing::read_bytes(folder.file("small.h5")).size() * 5,
            testing::read_bytes(folder.file("large.h5")).size());
}

TEST(WriteMasks, KeepsManyGroups) {
  BlockMask mask;
  mask.block = {16, 16};
  mask.shape = {20, 30, {33}, {40}};
  std::vector<BcsrMask> groups;
  for (int g = 0; g < 600; ++g) {
    mask.group_of.push_back(g);
    groups.push_back(testing::bcsr_of(
        testing::make_cells(33, 40, [g](auto q, auto k) { return (q * 40 + k) % 601 != g; }),
        mask.block));
  }
  mask.groups = std::move(groups);
  expect_round_trip(mask);
}

TEST(WriteMasks, KeepsSpecsOfAnyLength) {
  BlockMask mask = make_mask(MaskFormat::bcsr);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{31999},
                                 std::size_t{32000}, std::size_t{32001}, std::size_t{300000}}) {
    mask.spec.assign(size, 'x');
    expect_round_trip(mask);
  }
}

TEST(WriteMasks, HoldsSeveralMasks) {
  const TemporaryFolder folder;
  const std::string path = folder.file("masks.h5");
  std::vector<NamedMask> masks;
  for (const MaskFormat format : kMaskFormats) {
    masks.push_back({std::string(to_string(format)), make_mask(format)});
  }
  masks.push_back({"caf\u00e9 \u2264 1.0", make_mask(MaskFormat::bcsr)});
  ASSERT_TRUE(write_masks(path, masks));
  const auto names = list_masks(path);
  ASSERT_TRUE(names);
  EXPECT_THAT(*names, ElementsAre("bcsr", "bitset", "caf\u00e9 \u2264 1.0", "columns", "dense",
                                  "parametric", "segment"));
  for (const NamedMask& named : masks) {
    const auto read = read_mask(path, named.name);
    ASSERT_TRUE(read) << read.error().message;
    expect_equal(*read, named.mask);
  }
  const auto unnamed = read_mask(path);
  ASSERT_FALSE(unnamed);
  EXPECT_EQ(unnamed.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(unnamed.error().message, HasSubstr("holds 7 masks, name one of: bcsr, bitset"));
  const auto absent = read_mask(path, "nope");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::io);
  EXPECT_THAT(absent.error().message, HasSubstr("no mask 'nope'; it holds: bcsr"));
}

TEST(WriteMasks, RejectsBadNames) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  for (const std::string name : {"", "a/b", ".", ".."}) {
    const auto written = write_masks(path, {{name, make_mask(MaskFormat::bcsr)}});
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, ErrorCode::invalid_argument);
  }
  const auto twice =
      write_masks(path, {{"a", make_mask(MaskFormat::bcsr)}, {"a", make_mask(MaskFormat::dense)}});
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().message, HasSubstr("'a' is given twice"));
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(WriteMasks, RejectsInvalidMasks) {
  const TemporaryFolder folder;
  BlockMask mask = make_mask(MaskFormat::bcsr);
  std::get<std::vector<BcsrMask>>(mask.groups)[1].col_indices[0] = 1000;
  const auto written = write_masks(folder.file("m.h5"), {{"m", mask}});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(WriteMasks, ReplacesTheFileInOneStep) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, {{"old", make_mask(MaskFormat::bcsr)}}));
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(write_masks(path, {{"new", make_mask(MaskFormat::dense)}}));
  EXPECT_THAT(*list_masks(path), ElementsAre("new"));
  EXPECT_THAT(folder.names(), ElementsAre("m.h5"));
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(WriteMasks, WritesBehindASymbolicLink) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_masks(folder.file("real.h5"), {{"old", make_mask(MaskFormat::bcsr)}}));
  ASSERT_EQ(symlink("real.h5", folder.file("link.h5").c_str()), 0);
  ASSERT_TRUE(write_masks(folder.file("link.h5"), {{"new", make_mask(MaskFormat::bcsr)}}));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link.h5")));
  EXPECT_THAT(*list_masks(folder.file("real.h5")), ElementsAre("new"));
}

TEST(WriteMasks, RejectsPathsThatCannotBeFiles) {
  const TemporaryFolder folder;
  const std::vector<NamedMask> masks = {{"m", make_mask(MaskFormat::bcsr)}};
  const auto expect_error = [&](const std::string& path, const std::string& text) {
    const auto written = write_masks(path, masks);
    ASSERT_FALSE(written) << path;
    EXPECT_EQ(written.error().code, ErrorCode::io);
    EXPECT_THAT(written.error().message, HasSubstr(text)) << path;
  };
  expect_error(folder.path(), "Is a directory");
  expect_error(folder.file("absent/m.h5"), "No such file or directory");
  expect_error("", "No such file or directory");
  expect_error("/dev/full", "not a regular file");
  testing::write_bytes(folder.file("plain"), "x");
  expect_error(folder.file("plain") + "/m.h5", "Not a directory");
  expect_error("/proc/m.h5", "cannot write '/proc/m.h5': ");
  EXPECT_THAT(folder.names(), ElementsAre("plain"));
}

TEST(WriteMasks, RejectsFoldersWithoutPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0500), 0);
  const auto written = write_masks(folder.file("m.h5"), {{"m", make_mask(MaskFormat::bcsr)}});
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message, HasSubstr("Permission denied"));
}

// Runs `body` in a child process, because limits cannot be raised again and a signal is
// process-wide.
template <class Body>
int exit_code_of(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(WriteMasks, LeavesNothingOnAFullDisk) {
  BlockMask mask = make_mask(MaskFormat::dense);
  mask.shape = {1, 1, {1000}, {1000}};
  mask.group_of = {0};
  mask.groups = std::vector{testing::dense_of(
      testing::make_cells(1000, 1000, [](auto q, auto k) { return (q * 13 + k * k) % 7 < 3; }))};
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, {{"m", make_mask(MaskFormat::bcsr)}}));
  const std::string before = testing::read_bytes(path);
  // Each limit makes the write fail at another point: the superblock, a header, values, the last
  // flush.
  for (const rlim_t limit : {0, 100, 2048, 8000, 50000, 120000}) {
    const int code = exit_code_of([&] {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limits{limit, limit};
      if (setrlimit(RLIMIT_FSIZE, &limits) != 0) return 10;
      const auto written = write_masks(path, {{"m", mask}}, WriteOptions{.compress = false});
      if (written) return 11;
      if (written.error().code != ErrorCode::io) return 12;
      if (written.error().message.find("File too large") == std::string::npos) return 13;
      const auto again = write_masks(path, {{"m", mask}}, WriteOptions{.compress = false});
      if (again) return 14;  // the failure left HDF5 usable
      return read_mask(path).has_value() ? 0 : 15;
    });
    EXPECT_EQ(code, 0) << "limit " << limit;
    EXPECT_THAT(folder.names(), ElementsAre("m.h5"));
    EXPECT_EQ(testing::read_bytes(path), before);
  }
}

TEST(RemovePendingFiles, RemovesWhatASignalInterrupts) {
  const TemporaryFolder folder;
  const int code = exit_code_of([&] {
    auto file = PendingFile::create(folder.file("m.h5"));
    if (!file || folder.names().size() != 1) return 10;
    remove_pending_files();
    if (!folder.names().empty()) return 11;
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(RemovePendingFiles, LeavesFinishedFilesAndThoseOfOtherProcesses) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_masks(folder.file("done.h5"), {{"m", make_mask(MaskFormat::bcsr)}}));
  auto pending = PendingFile::create(folder.file("mine.h5"));
  ASSERT_TRUE(pending);
  EXPECT_EQ(exit_code_of([&] {
              remove_pending_files();
              return 0;
            }),
            0);
  EXPECT_EQ(folder.names().size(), 2u);
}

TEST(PendingFile, DisappearsUnlessCommitted) {
  const TemporaryFolder folder;
  {
    const auto file = PendingFile::create(folder.file("m.h5"));
    ASSERT_TRUE(file);
    EXPECT_EQ(folder.names().size(), 1u);
  }
  EXPECT_THAT(folder.names(), IsEmpty());
  auto file = PendingFile::create(folder.file("m.h5"));
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->commit());
  EXPECT_THAT(folder.names(), ElementsAre("m.h5"));
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST(PendingFile, HasTheModeOfTheFileThatItReplaces) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  testing::write_bytes(path, "private");
  for (const mode_t mode : {mode_t{0600}, mode_t{0640}, mode_t{0604}, mode_t{0755}}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    auto file = PendingFile::create(path);
    ASSERT_TRUE(file);
    EXPECT_EQ(mode_of(file->temporary_path()), mode);
    ASSERT_TRUE(file->commit());
    EXPECT_EQ(mode_of(path), mode);
  }
}

TEST(PendingFile, HasWhatTheUmaskLeavesWhereItIsNew) {
  const TemporaryFolder folder;
  const mode_t before = umask(0027);
  auto file = PendingFile::create(folder.file("m.h5"));
  umask(before);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(mode_of(folder.file("m.h5")), 0640u);
}

TEST(PendingFile, HasOwnerAndGroupOfTheFileThatItReplaces) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may give files to others";
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  testing::write_bytes(path, "theirs");
  ASSERT_EQ(chown(path.c_str(), 12345, 23456), 0);
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  auto file = PendingFile::create(path);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->commit());
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 12345u);
  EXPECT_EQ(status.st_gid, 23456u);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

TEST(PendingFile, GivesAGroupThatIsNotKeptNoMoreThanEverybody) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become somebody else";
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  testing::write_bytes(path, "for the group");
  ASSERT_EQ(chown(path.c_str(), 12345, 23456), 0);
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  EXPECT_EQ(exit_code_of([&] {
              if (setgid(34567) != 0 || setuid(12345) != 0) return 10;
              auto file = PendingFile::create(path);
              if (!file) return 11;
              return file->commit() ? 0 : 12;
            }),
            0);
  EXPECT_EQ(mode_of(path), 0600u);
}

TEST(PendingFile, KeepsALinkWhoseTargetIsNotThereYet) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("real"));
  ASSERT_EQ(symlink("real/new.h5", folder.file("first.h5").c_str()), 0);
  ASSERT_EQ(symlink(folder.file("first.h5").c_str(), folder.file("link.h5").c_str()), 0);
  auto file = PendingFile::create(folder.file("link.h5"));
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_TRUE(file->commit());
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link.h5")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("first.h5")));
  EXPECT_TRUE(std::filesystem::is_regular_file(folder.file("real/new.h5")));
}

TEST(PendingFile, RejectsLinksThatLeadNowhere) {
  const TemporaryFolder folder;
  ASSERT_EQ(symlink("b.h5", folder.file("a.h5").c_str()), 0);
  ASSERT_EQ(symlink("a.h5", folder.file("b.h5").c_str()), 0);
  ASSERT_EQ(symlink("absent/new.h5", folder.file("c.h5").c_str()), 0);
  const auto circle = PendingFile::create(folder.file("a.h5"));
  ASSERT_FALSE(circle);
  EXPECT_EQ(circle.error().message,
            "cannot write '" + folder.file("a.h5") + "': Too many levels of symbolic links");
  const auto absent = PendingFile::create(folder.file("c.h5"));
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().message, "cannot write '" + folder.file("c.h5") + "' -> '" +
                                        folder.file("absent/new.h5") +
                                        "': No such file or directory");
  EXPECT_THAT(folder.names(), UnorderedElementsAre("a.h5", "b.h5", "c.h5"));
}

TEST(PendingFile, CommitsAsNewOnlyWhereNothingIs) {
  const TemporaryFolder folder;
  auto mine = PendingFile::create(folder.file("m.h5"));
  auto other = PendingFile::create(folder.file("m.h5"));
  ASSERT_TRUE(mine && other);
  EXPECT_TRUE(*other->commit_if_new());
  testing::write_bytes(folder.file("m.h5"), "other");
  const auto moved = mine->commit_if_new();
  ASSERT_TRUE(moved);
  EXPECT_FALSE(*moved);
  EXPECT_EQ(testing::read_bytes(folder.file("m.h5")), "other");
}

TEST(StopWriting, StopsBeforeTheFirstFileOnly) {
  const TemporaryFolder folder;
  EXPECT_EQ(exit_code_of([&] {
              auto file = PendingFile::create(folder.file("m.h5"));
              if (!file || folder.names().size() != 1) return 10;
              return stop_writing() && folder.names().empty() ? 0 : 11;
            }),
            0);
  EXPECT_EQ(exit_code_of([&] {
              if (!write_masks(folder.file("m.h5"), {{"m", make_mask(MaskFormat::bcsr)}}))
                return 10;
              return stop_writing() ? 11 : 0;
            }),
            0);
  EXPECT_THAT(folder.names(), ElementsAre("m.h5"));
}

TEST(PendingFile, ShortensLongNames) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  ASSERT_TRUE(write_masks(folder.file(name), {{"m", make_mask(MaskFormat::bcsr)}}));
  EXPECT_THAT(folder.names(), ElementsAre(name));
}

}  // namespace
}  // namespace fdma
