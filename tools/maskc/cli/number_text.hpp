// Numbers as text for people: counts, bytes, durations, percentages.
#pragma once

#include <cstdint>
#include <string>

namespace fdma::maskc {

/// "1,234,567".
std::string count_text(std::int64_t value);
/// "512 B", "12.3 KiB", "1.00 GiB": three digits.
std::string bytes_text(std::int64_t bytes);
/// "412 us", "1.25 ms", "3.1 s", "2 min 05 s".
std::string duration_text(double seconds);
/// part / whole as "3.1339 %"; "0 %" if there is nothing.
std::string percent_text(double part, double whole);
/// "1 group", "2 groups".
std::string plural(std::int64_t count, const std::string& noun);

}  // namespace fdma::maskc
