// Replaces operator new and delete by malloc and free plus, while an AllocationPeak exists, two
// relaxed atomic counters. malloc_usable_size gives the size at delete, so that nothing is stored
// beside a block.
#include "allocation_peak.hpp"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace fdma {
namespace {

std::atomic<bool> is_counting{false};
std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

void count_new(void* block) {
  if (!is_counting.load(std::memory_order_relaxed)) return;
  const auto size = static_cast<std::int64_t>(malloc_usable_size(block));
  const std::int64_t live = live_bytes.fetch_add(size, std::memory_order_relaxed) + size;
  std::int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (size == 0) size = 1;
  void* block = alignment <= alignof(std::max_align_t)
                    ? std::malloc(size)
                    : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  count_new(block);
  return block;
}

void release(void* block) {
  if (block == nullptr) return;
  if (is_counting.load(std::memory_order_relaxed)) {
    live_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(block)),
                         std::memory_order_relaxed);
  }
  std::free(block);
}

}  // namespace

AllocationPeak::AllocationPeak() {
  live_bytes = 0;
  peak_bytes = 0;
  is_counting = true;
}
AllocationPeak::~AllocationPeak() { is_counting = false; }
std::int64_t AllocationPeak::bytes() const { return peak_bytes; }

}  // namespace fdma

void* operator new(std::size_t size) { return fdma::allocate(size, 0); }
void* operator new[](std::size_t size) { return fdma::allocate(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return fdma::allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return fdma::allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { fdma::release(block); }
void operator delete[](void* block) noexcept { fdma::release(block); }
void operator delete(void* block, std::size_t) noexcept { fdma::release(block); }
void operator delete[](void* block, std::size_t) noexcept { fdma::release(block); }
void operator delete(void* block, std::align_val_t) noexcept { fdma::release(block); }
void operator delete[](void* block, std::align_val_t) noexcept { fdma::release(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { fdma::release(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept {
  fdma::release(block);
}
