// Tests reading in a child process. Results and errors are those of reading without one, and
// whatever ends the child (failing_hdf5.cpp) is an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tbb/parallel_for.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "fdma/io/isolated_reader.hpp"
#include "fdma/io/mask_file.hpp"
#include "h5_edits.hpp"
#include "io/isolated/protocol.hpp"
#include "mask_fixtures.hpp"
#include "sanitizers.hpp"

namespace fdma {
namespace {

using testing::DatasetSpec;
using testing::FileEdit;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using Clock = std::chrono::steady_clock;

// Sets what HDF5 does in processes that are started during the lifetime of the object.
class FailingHdf5 {
 public:
  explicit FailingHdf5(const char* what) { setenv("FDMA_TEST_HDF5", what, 1); }
  ~FailingHdf5() { unsetenv("FDMA_TEST_HDF5"); }
};

// Writes a causal dense mask of 300 x 200 int8.
std::string dense_file(const TemporaryFolder& folder, const DatasetSpec& spec = {{300, 200}, {}}) {
  const std::string path = folder.file("dense.h5");
  std::vector<std::int8_t> values;
  for (std::size_t q = 0; q < spec.extents[0]; ++q) {
    for (std::size_t k = 0; k < spec.extents[1]; ++k) values.push_back(k <= q ? 1 : 0);
  }
  FileEdit file = FileEdit::create(path);
  testing::write_dataset(file, "/mask", spec, H5T_STD_I8LE, H5T_NATIVE_INT8, values.data());
  values[7] = 2;
  testing::write_dataset(file, "/wrong", spec, H5T_STD_I8LE, H5T_NATIVE_INT8, values.data());
  return path;
}

int num_descriptors() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

bool has_children() { return waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

template <class T>
void expect_same_error(const Result<T>& isolated, const Result<T>& direct) {
  ASSERT_FALSE(direct);
  ASSERT_FALSE(isolated);
  EXPECT_EQ(isolated.error().code, direct.error().code);
  EXPECT_EQ(isolated.error().message, direct.error().message);
}

TEST(IsolatedReader, ReadsWhatIsReadDirectly) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  IsolatedReader reader;
  DenseReadOptions options;
  options.block = {32, 64};
  const auto mask = reader.read_dense_mask(path, "/mask", options);
  ASSERT_TRUE(mask) << mask.error().message;
  const auto direct = read_dense_mask(path, "/mask", options);
  ASSERT_TRUE(direct);
  EXPECT_TRUE(mask->groups == direct->groups);
  EXPECT_TRUE(mask->shape == direct->shape);
  EXPECT_TRUE(mask->block == direct->block);
  const auto table = reader.read_table(path, "/mask");
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->bytes, read_table(path, "/mask")->bytes);
  const auto group = reader.read_interop_group(path, "/");
  ASSERT_TRUE(group) << group.error().message;
  EXPECT_EQ(group->arrays.size(), 2u);
  EXPECT_EQ(group->arrays.at("wrong").bytes, read_table(path, "/wrong")->bytes);
  EXPECT_EQ(reader.num_crashes(), 0);
}

TEST(IsolatedReader, ReadsMasksOfEveryFormat) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  std::vector<NamedMask> masks;
  for (const MaskFormat format : kMaskFormats) {
    masks.push_back({std::string(to_string(format)), testing::make_mask(format)});
    masks.back().mask.spec = "spec";
  }
  masks.push_back({"patterns", testing::make_pattern_mask()});
  masks.back().mask.spec = "spec";
  ASSERT_TRUE(write_masks(path, masks));
  IsolatedReader reader;
  const auto names = reader.list_masks(path);
  ASSERT_TRUE(names);
  EXPECT_EQ(*names, *list_masks(path));
  for (const NamedMask& named : masks) {
    const auto mask = reader.read_mask(path, named.name);
    ASSERT_TRUE(mask) << mask.error().message;
    EXPECT_TRUE(mask->groups == named.mask.groups) << named.name;
    EXPECT_EQ(mask->group_of, named.mask.group_of);
    EXPECT_EQ(mask->spec, "spec");
  }
}

TEST(IsolatedReader, RejectsInTheSameWords) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  const std::string text = folder.file("text.h5");
  testing::write_bytes(text, "no HDF5");
  IsolatedReader reader;
  expect_same_error(reader.read_dense_mask(path, "/wrong"), read_dense_mask(path, "/wrong"));
  expect_same_error(reader.read_dense_mask(path, "/absent"), read_dense_mask(path, "/absent"));
  expect_same_error(reader.read_dense_mask(folder.file("absent.h5"), "/mask"),
                    read_dense_mask(folder.file("absent.h5"), "/mask"));
  expect_same_error(reader.read_dense_mask(text, "/mask"), read_dense_mask(text, "/mask"));
  expect_same_error(reader.list_masks(path), list_masks(path));
  expect_same_error(reader.read_mask(path), read_mask(path));
  expect_same_error(reader.read_interop_group(path, "/mask"), read_interop_group(path, "/mask"));
  expect_same_error(reader.read_table(text, "/t"), read_table(text, "/t"));
  EXPECT_EQ(reader.num_crashes(), 0);
}

struct Failure {
  const char* hdf5;
  ErrorCode code;
  const char* message;
};
std::ostream& operator<<(std::ostream& out, const Failure& failure) { return out << failure.hdf5; }

class IsolatedReaderSurvives : public ::testing::TestWithParam<Failure> {};

TEST_P(IsolatedReaderSurvives, AndNamesTheFileAndWhatHappened) {
  if (testing::kHasAddressSanitizer && std::string(GetParam().hdf5) == "memory") {
    GTEST_SKIP() << "AddressSanitizer ends a process that runs out of memory";
  }
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  const int descriptors = num_descriptors();
  IsolationOptions options;
  options.cpu_seconds = 1;
  options.memory_bytes = std::int64_t{256} << 20;
  {
    IsolatedReader reader(options);
    {
      const FailingHdf5 failing(GetParam().hdf5);
      for (int i = 0; i < 2; ++i) {
        const auto mask = reader.read_dense_mask(path, "/mask");
        ASSERT_FALSE(mask);
        EXPECT_EQ(mask.error().code, GetParam().code) << mask.error().message;
        EXPECT_THAT(mask.error().message, HasSubstr("dense.h5"));
        EXPECT_THAT(mask.error().message, HasSubstr(GetParam().message));
      }
    }
    // A process that was not harmed keeps the environment with which it was started.
    IsolatedReader other(options);
    EXPECT_TRUE(other.read_dense_mask(path, "/mask"));
  }
  EXPECT_EQ(num_descriptors(), descriptors);
  EXPECT_FALSE(has_children());
}

INSTANTIATE_TEST_SUITE_P(
    All, IsolatedReaderSurvives,
    ::testing::Values(
        Failure{"segv", ErrorCode::corrupt_file, "crashed the HDF5 library (SIGSEGV"},
        Failure{"abort", ErrorCode::corrupt_file, "crashed the HDF5 library (SIGABRT"},
        Failure{"kill", ErrorCode::out_of_memory, "killed, as the system does when memory"},
        Failure{"exit", ErrorCode::corrupt_file, "exit code 7"},
        Failure{"loop", ErrorCode::corrupt_file, "no progress in 1 s of CPU time"},
        Failure{"memory", ErrorCode::out_of_memory, "out of memory reading"},
        Failure{"garbage", ErrorCode::corrupt_file, "answered what it may not"}),
    [](const auto& parameter) { return std::string(parameter.param.hdf5); });

TEST(IsolatedReader, StopsWhenCancelledOrTooLate) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  const FailingHdf5 failing("sleep");
  const Clock::time_point begin = Clock::now();
  DenseReadOptions options;
  options.is_cancelled = [&] { return Clock::now() - begin > std::chrono::milliseconds(100); };
  IsolatedReader reader;
  const auto cancelled = reader.read_dense_mask(path, "/mask", options);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::io);
  EXPECT_EQ(cancelled.error().message, "'" + path + ":/mask': interrupted");
  IsolationOptions isolation;
  isolation.max_seconds = 0.2;
  IsolatedReader impatient(isolation);
  const auto late = impatient.read_table(path, "/mask");
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::corrupt_file);
  EXPECT_THAT(late.error().message, HasSubstr("took longer than 0.2 s"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  EXPECT_FALSE(has_children());
}

TEST(IsolatedReader, ReportsProgressHere) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder, {{2000, 1500}, {500, 1500}, true});
  DenseReadOptions options;
  std::int64_t done = 0, total = 0;
  const auto thread = std::this_thread::get_id();
  options.progress = [&](std::int64_t done_bytes, std::int64_t total_bytes) {
    EXPECT_EQ(std::this_thread::get_id(), thread);
    EXPECT_GE(done_bytes, done);
    done = done_bytes;
    total = total_bytes;
  };
  IsolatedReader reader;
  ASSERT_TRUE(reader.read_dense_mask(path, "/mask", options));
  EXPECT_EQ(done, 2000 * 1500);
  EXPECT_EQ(total, 2000 * 1500);
}

TEST(IsolatedReader, ServesManyThreadsBesideATaskPool) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  std::atomic<int> num_read = 0;
  tbb::parallel_for(0, 8, [&](int) {
    IsolatedReader reader;
    if (reader.read_dense_mask(path, "/mask")) ++num_read;
  });
  EXPECT_EQ(num_read, 8);
}

TEST(IsolatedReader, OutlivesTheThreadThatUsedItFirst) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  IsolatedReader reader;
  std::thread([&] { EXPECT_TRUE(reader.read_dense_mask(path, "/mask")); }).join();
  EXPECT_TRUE(reader.read_dense_mask(path, "/mask"));
  EXPECT_EQ(reader.num_crashes(), 0);
}

// Returns the number of reading processes of process `parent`, by their command lines.
int num_readers_of(pid_t parent) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line(std::istreambuf_iterator<char>(file), {});
    const std::string wanted =
        std::string(io::kServeArgument) + '\0' + std::to_string(parent) + '\0';
    if (line.find(wanted) != std::string::npos) ++count;
  }
  return count;
}

bool becomes(int expected, pid_t parent) {
  for (int i = 0; i < 1000 && num_readers_of(parent) != expected; ++i) usleep(10000);
  return num_readers_of(parent) == expected;
}

TEST(IsolatedReader, EndsWithTheProcessThatAsked) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  const FailingHdf5 failing("sleep");
  const pid_t asking = fork();
  if (asking == 0) {
    IsolatedReader reader;
    _exit(reader.read_dense_mask(path, "/mask") ? 0 : 1);
  }
  EXPECT_TRUE(becomes(1, asking));
  kill(asking, SIGKILL);
  waitpid(asking, nullptr, 0);
  EXPECT_TRUE(becomes(0, asking));
}

TEST(IsolatedReader, RejectsProgramsThatDoNotRead) {
  const TemporaryFolder folder;
  const std::string path = dense_file(folder);
  IsolationOptions options;
  options.program = folder.file("absent");
  const auto absent = IsolatedReader(options).read_dense_mask(path, "/mask");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::io);
  EXPECT_THAT(absent.error().message, HasSubstr("No such file"));
  options.program = "/bin/true";
  const auto other = IsolatedReader(options).read_dense_mask(path, "/mask");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("exit code 0"));
}

}  // namespace
}  // namespace fdma
