// Opens the cuSPARSE library with dlopen and looks up its functions. Each name is opened once
// per process, under a mutex.
#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cusparse/cusparse_library.hpp"

namespace fdma::cusparse {
namespace {

constexpr const char* kSoname = "libcusparse.so.12";

bool is_folder(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// Names to try. If the caller gave a path, only that is tried: another library would be a surprise.
std::vector<std::string> candidates(std::string path) {
  if (path.empty()) {
    const char* const variable = std::getenv("FDMA_CUSPARSE");
    if (variable != nullptr) path = variable;
  }
  if (path.empty()) return {kSoname, "libcusparse.so"};
  if (is_folder(path)) path += std::string("/") + kSoname;
  return {path};
}

void append(std::string& list, const char* separator, const std::string& text) {
  if (!list.empty()) list += separator;
  list += text;
}

template <class Function>
void find(void* handle, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) append(missing, ", ", name);
}

// Loads all functions; returns the names of those that the library lacks, or an empty string.
std::string load_functions(void* handle, Library& library) {
  std::string missing;
  find(handle, "cusparseGetProperty", library.get_property, missing);
  find(handle, "cusparseGetErrorString", library.error_string, missing);
  find(handle, "cusparseCreate", library.create, missing);
  find(handle, "cusparseDestroy", library.destroy, missing);
  find(handle, "cusparseSetStream", library.set_stream, missing);
  find(handle, "cusparseCreateCsr", library.create_csr, missing);
  find(handle, "cusparseDestroySpMat", library.destroy_sparse, missing);
  find(handle, "cusparseCreateDnMat", library.create_dense, missing);
  find(handle, "cusparseDestroyDnMat", library.destroy_dense, missing);
  find(handle, "cusparseSDDMM_bufferSize", library.sddmm_buffer_size, missing);
  find(handle, "cusparseSDDMM_preprocess", library.sddmm_preprocess, missing);
  find(handle, "cusparseSDDMM", library.sddmm, missing);
  find(handle, "cusparseSpMM_bufferSize", library.spmm_buffer_size, missing);
  find(handle, "cusparseSpMM_preprocess", library.spmm_preprocess, missing);
  find(handle, "cusparseSpMM", library.spmm, missing);
  return missing;
}

// The dynamic linker's message about the last call.
std::string loader_error() {
  const char* const text = dlerror();
  return text != nullptr ? text : "unknown reason";
}

}  // namespace

Result<void> Library::check(cusparseStatus_t status, const char* call) const {
  if (status == CUSPARSE_STATUS_SUCCESS) return {};
  ErrorCode code = ErrorCode::cuda;
  if (status == CUSPARSE_STATUS_NOT_SUPPORTED || status == CUSPARSE_STATUS_ARCH_MISMATCH) {
    code = ErrorCode::unsupported;
  } else if (status == CUSPARSE_STATUS_ALLOC_FAILED ||
             status == CUSPARSE_STATUS_INSUFFICIENT_RESOURCES) {
    code = ErrorCode::out_of_memory;
  }
  return Error{code, std::string(call) + ": " + error_string(status)};
}

Result<std::string> Library::version() const {
  std::string version;
  for (const libraryPropertyType part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL}) {
    int value = 0;
    FDMA_TRY_VOID(check(get_property(part, &value), "cusparseGetProperty"));
    append(version, ".", std::to_string(value));
  }
  return version;
}

Result<const Library*> open_library(const std::string& path) {
  static std::mutex mutex;
  // Keyed by the name that was found
  static std::map<std::string, std::unique_ptr<Library>> opened;
  const std::lock_guard lock(mutex);
  std::string reasons;
  for (const std::string& name : candidates(path)) {
    if (const auto found = opened.find(name); found != opened.end()) return found->second.get();
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      append(reasons, "; ", loader_error());
      continue;
    }
    auto library = std::make_unique<Library>();
    const std::string missing = load_functions(handle, *library);
    if (missing.empty()) return (opened[name] = std::move(library)).get();
    append(reasons, "; ", name + ": has no " + missing);
    dlclose(handle);
  }
  return Error{
      ErrorCode::unsupported,
      "cuSPARSE: it could not be opened (" + reasons +
          "). It comes with the CUDA toolkit, with PyTorch for CUDA, and as `pip install "
          "nvidia-cusparse`; the environment variable FDMA_CUSPARSE names libcusparse.so.12 "
          "or its folder"};
}

}  // namespace fdma::cusparse
