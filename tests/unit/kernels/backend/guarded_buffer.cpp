#include "backend/guarded_buffer.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace fdma::testing {
namespace {

constexpr unsigned char kCanary = 0xa5;

}  // namespace

GuardedBuffer::GuardedBuffer(std::int64_t num_bytes, GuardSide side) : num_bytes_(num_bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<std::size_t>(num_bytes);
  page_bytes_ = std::max<std::size_t>(1, (bytes + page - 1) / page) * page;
  mapped_bytes_ = page_bytes_ + 2 * page;
  void* mapping = ::mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::runtime_error("mmap failed");
  mapping_ = static_cast<unsigned char*>(mapping);
  pages_ = mapping_ + page;
  if (::mprotect(pages_, page_bytes_, PROT_READ | PROT_WRITE) != 0)
    throw std::runtime_error("mprotect failed");
  std::memset(pages_, kCanary, page_bytes_);
  data_ = side == GuardSide::end ? pages_ + (page_bytes_ - bytes) : pages_;
}

GuardedBuffer::~GuardedBuffer() { ::munmap(mapping_, mapped_bytes_); }

void GuardedBuffer::fill(unsigned char value) {
  std::memset(data_, value, static_cast<std::size_t>(num_bytes_));
}

bool GuardedBuffer::has_canaries() const {
  const auto is_canary = [](unsigned char byte) { return byte == kCanary; };
  return std::all_of(pages_, static_cast<unsigned char*>(data_), is_canary) &&
         std::all_of(data_ + num_bytes_, pages_ + page_bytes_, is_canary);
}

void GuardedBuffer::make_read_only() {
  if (::mprotect(pages_, page_bytes_, PROT_READ) != 0) throw std::runtime_error("mprotect failed");
}

}  // namespace fdma::testing
