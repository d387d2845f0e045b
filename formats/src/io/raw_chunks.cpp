#include "raw_chunks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>

#include "h5_driver.hpp"

namespace fdma::io {

/// What a driver knows of its file, and what it took down.
struct ChunkNotes {
  int descriptor = -1;
  std::int64_t file_bytes = 0;
  bool takes_down = false;  // raw data is not read but noted here
  int num_places = 0;
  haddr_t address = 0;  // of the last place
  std::size_t size = 0;
};

namespace {

using Driver = H5Driver<ChunkNotes>;

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t max_address) {
  return (flags & H5F_ACC_RDWR) == 0 ? Driver::open(name, flags, access, max_address) : nullptr;
}

// Every view is a file of its own.
int compare_files(const H5FD_t* a, const H5FD_t* b) { return a < b ? -1 : (b < a ? 1 : 0); }

herr_t query_features(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr) *flags = H5FD_FEAT_ACCUMULATE_METADATA;
  return 0;
}

haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) {
  return static_cast<haddr_t>(Driver::as_file(file)->state->file_bytes);
}

herr_t read_bytes(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t size,
                  void* buffer) {
  ChunkNotes& notes = *Driver::as_file(file)->state;
  if (notes.takes_down && type == H5FD_MEM_DRAW) {
    ++notes.num_places;
    notes.address = address;
    notes.size = size;
    return 0;
  }
  if (!is_inside(address, size, notes.file_bytes)) return -1;
  return read_exactly(notes.descriptor, static_cast<std::int64_t>(address),
                      static_cast<std::int64_t>(size), static_cast<std::byte*>(buffer))
             ? 0
             : -1;
}

herr_t write_bytes(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

H5FD_class_t make_class() {
  H5FD_class_t driver = Driver::make_class("fdma_raw_chunks", 601);
  driver.open = open_file;
  driver.cmp = compare_files;
  driver.query = query_features;
  driver.get_eof = get_eof;
  driver.read = read_bytes;
  driver.write = write_bytes;
  return driver;
}

herr_t read_chunk(hid_t dataset, const hsize_t* offset, std::uint32_t* filter_mask) {
  std::byte nothing{};  // the driver puts nothing there
#if H5_VERS_MAJOR >= 2
  std::size_t size = std::numeric_limits<std::size_t>::max();
  return H5Dread_chunk(dataset, H5P_DEFAULT, offset, filter_mask, &nothing, &size);
#else
  return H5Dread_chunk(dataset, H5P_DEFAULT, offset, filter_mask, &nothing);
#endif
}

}  // namespace

RawChunks::RawChunks() : notes_(std::make_unique<ChunkNotes>()) {}
RawChunks::RawChunks(RawChunks&&) noexcept = default;
RawChunks& RawChunks::operator=(RawChunks&&) noexcept = default;
RawChunks::~RawChunks() {
  dataset_.reset();
  file_.reset();
}

Result<RawChunks> RawChunks::open(const InputFile& input, const std::string& dataset,
                                  const std::string& where) {
  RawChunks chunks;
  chunks.where_ = where;
  FDMA_TRY(chunks.notes_->descriptor, descriptor_of(input));
  chunks.notes_->file_bytes = input.size_bytes;
  const Handle access = Driver::access(make_class(), chunks.notes_.get());
  if (!access || H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) < 0) {
    return hdf5_error(where, "HDF5 cannot be set up");
  }
  chunks.file_ = Handle(H5Fopen(input.path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!chunks.file_) return hdf5_error(where, "cannot open the file again");
  FDMA_TRY(DatasetInfo info, open_dataset(chunks.file_.get(), dataset, where));
  chunks.dataset_ = std::move(info.dataset);
  return chunks;
}

Result<ChunkPlace> RawChunks::find(const std::vector<std::int64_t>& begin, std::int64_t max_bytes) {
  offset_.assign(begin.begin(), begin.end());
  ChunkPlace place;
  ChunkNotes& notes = *notes_;
  notes.num_places = 0;
  notes.takes_down = true;
  const herr_t status = read_chunk(dataset_.get(), offset_.data(), &place.filter_mask);
  notes.takes_down = false;
  const auto wrong = [&](ErrorCode code, const std::string& text) {
    return Error{code, fmt::format("{}: chunk {} {}", where_, extents_text(begin), text)};
  };
  if (status < 0) {
    // Versions differ in what H5Dget_chunk_storage_size says of a chunk that was never written.
    const std::string reason = last_reason();
    if (reason == "chunk address isn't defined") return place;
    hsize_t size = 0;
    const bool is_absent =
        H5Dget_chunk_storage_size(dataset_.get(), offset_.data(), &size) >= 0 && size == 0;
    H5Eclear2(H5E_DEFAULT);
    if (is_absent) return place;
    return wrong(ErrorCode::corrupt_file, fmt::format("cannot be found: {}", reason));
  }
  if (notes.num_places != 1) {
    return wrong(ErrorCode::corrupt_file,
                 fmt::format("is in {} places of the file", notes.num_places));
  }
  if (!is_inside(notes.address, notes.size, notes.file_bytes)) {
    return wrong(ErrorCode::corrupt_file,
                 fmt::format("would take bytes [{}, {} + {}), but the file has {}", notes.address,
                             notes.address, notes.size, notes.file_bytes));
  }
  if (static_cast<std::int64_t>(notes.size) > max_bytes) {
    return wrong(
        ErrorCode::corrupt_file,
        fmt::format("takes {} bytes in the file, expected {} at most", notes.size, max_bytes));
  }
  place.address = static_cast<std::int64_t>(notes.address);
  place.size = static_cast<std::int64_t>(notes.size);
  place.is_stored = true;
  return place;
}

Result<void> read_exactly(int descriptor, std::int64_t address, std::int64_t size, std::byte* out) {
  while (size > 0) {
    const ssize_t count = pread(descriptor, out, static_cast<std::size_t>(size), address);
    if (count < 0) {
      if (errno == EINTR) continue;
      return Error{ErrorCode::io,
                   fmt::format("cannot read the file: {}", std::generic_category().message(errno))};
    }
    if (count == 0) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("the file ends at byte {}, {} before its end", address, size)};
    }
    out += count;
    address += count;
    size -= count;
  }
  return {};
}

Result<int> descriptor_of(const InputFile& input) {
  void* handle = nullptr;
  if (H5Fget_vfd_handle(input.file.get(), H5P_DEFAULT, &handle) < 0 || handle == nullptr) {
    return hdf5_error(fmt::format("'{}'", input.path), "HDF5 does not give its descriptor");
  }
  return *static_cast<int*>(handle);
}

}  // namespace fdma::io
