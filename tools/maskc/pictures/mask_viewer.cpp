// Builds the page. The arrays are stored as little-endian 32-bit integers (bitmaps as bytes) in
// base64. The indices of a page are small, because kMaxViewerBytes bounds the arrays.
#include "pictures/mask_viewer.hpp"

#include <fmt/format.h>

#include <span>
#include <string_view>

#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "pictures/mask_svg.hpp"
#include "pictures/viewer_texts.hpp"

namespace fdma::maskc {
namespace {

// Base64 of bytes that are appended one after the other.
class Base64Writer {
 public:
  explicit Base64Writer(std::string& out) : out_(out) {}

  void byte(std::uint8_t value) {
    group_ = group_ << 8 | value;
    if (++num_bytes_ == 3) flush();
  }
  template <class Integer>
  void integer(Integer value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) byte(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void finish() {
    if (num_bytes_ > 0) flush();
  }

 private:
  void flush() {
    constexpr std::string_view kLetters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::uint32_t bits = group_ << (8 * (3 - num_bytes_));
    for (int i = 0; i < 4; ++i) {
      out_ += i <= num_bytes_ ? kLetters[bits >> (18 - 6 * i) & 63] : '=';
    }
    group_ = 0;
    num_bytes_ = 0;
  }

  std::string& out_;
  std::uint32_t group_ = 0;
  int num_bytes_ = 0;
};

void write_offsets(Base64Writer& out, const std::vector<std::int64_t>& offsets) {
  for (const std::int64_t offset : offsets) out.integer(offset, 4);
}

void write_intervals(Base64Writer& out, const std::vector<Interval>& intervals) {
  for (const Interval& interval : intervals) {
    out.integer(interval.begin, 4);
    out.integer(interval.end, 4);
  }
}

// Writes the array named `name` in the order in which viewer/mask_arrays.js reads it; false if
// there is no such array.
bool write_array(std::string& page, const SegmentMask& mask, std::string_view name) {
  Base64Writer out(page);
  if (name == "runs") {
    for (const TileRun& run : mask.runs) {
      for (const std::int32_t value :
           {run.first_row, run.row_stride, run.num_rows, run.num_segments}) {
        out.integer(value, 4);
      }
      out.integer(run.first_segment, 4);
    }
  } else if (name == "segments") {
    for (const TileSegment& segment : mask.segments) {
      for (const std::int32_t value :
           {segment.first_tile, segment.end_tile, segment.step_first, segment.step_end,
            static_cast<std::int32_t>(segment.kind), segment.data_index}) {
        out.integer(value, 4);
      }
    }
  } else if (name == "bitmaps") {
    for (const std::uint64_t word : mask.bitmaps) out.integer(word, 8);
  } else if (name == "row_offsets") {
    write_offsets(out, mask.row_offsets);
  } else if (name == "row_intervals") {
    write_intervals(out, mask.row_intervals);
  } else if (name == "column_offsets") {
    write_offsets(out, mask.column_offsets);
  } else if (name == "column_intervals") {
    write_intervals(out, mask.column_intervals);
  } else if (name == "patterns") {
    for (const TilePattern& pattern : mask.patterns) {
      for (const std::int32_t value :
           {pattern.num_rows, pattern.num_cols, pattern.skew, pattern.first_row}) {
        out.integer(value, 4);
      }
    }
  } else if (name == "pattern_offsets") {
    write_offsets(out, mask.pattern_offsets);
  } else if (name == "pattern_tiles") {
    for (const PatternTile& tile : mask.pattern_tiles) {
      out.integer(tile.column, 4);
      out.integer(tile.bitmap, 4);
    }
  } else {
    return false;
  }
  out.finish();
  return true;
}

Json header_of(const SegmentMask& mask) {
  Json header;
  header["q_len"] = mask.q_len;
  header["kv_len"] = mask.kv_len;
  header["block_q"] = mask.block.block_q;
  header["block_kv"] = mask.block.block_kv;
  return header;
}

// JSON inside a script element: no '<', which could end it.
std::string header_text(const SegmentMask& mask, const ViewerChoice* choice) {
  Json header = header_of(mask);
  if (choice != nullptr) {
    Json& chosen = header["choice"];
    chosen["num_heads"] = choice->num_heads;
    chosen["groups"] = choice->group_of_pair;
    chosen["masks"] = Json::array();
    for (const ViewerChoice::Group& group : choice->groups) {
      Json entry = header_of(group.mask);
      entry["facts"] = group.facts;
      chosen["masks"].push_back(std::move(entry));
    }
  }
  std::string text;
  for (const char c : header.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string number_field(std::string_view label, std::string_view id, std::int64_t count,
                         std::int64_t value) {
  return fmt::format(
      "<label>{0} <input type=\"number\" id=\"{1}\" min=\"0\" max=\"{2}\" "
      "value=\"{3}\"{4}></label>\n",
      label, id, count - 1, value, count == 1 ? " disabled" : "");
}

std::string choice_fields(const ViewerChoice* choice) {
  if (choice == nullptr) return {};
  return number_field("Batch element", "batch", choice->num_batches, choice->chosen.first) +
         number_field("Head", "head", choice->num_heads, choice->chosen.second);
}

std::string fact_list(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string list;
  for (const auto& [name, value] : facts) {
    list += fmt::format("<dt>{}</dt><dd>{}</dd>\n", markup_text(name), markup_text(value));
  }
  return list;
}

// The arrays of every mask of the choice; the ids end in the number of the mask.
void write_others(std::string& page, const ViewerChoice* choice) {
  if (choice == nullptr) return;
  for (std::size_t i = 0; i < choice->groups.size(); ++i) {
    for (const std::string_view name :
         {"runs", "segments", "bitmaps", "row_offsets", "row_intervals", "column_offsets",
          "column_intervals", "patterns", "pattern_offsets", "pattern_tiles"}) {
      page += fmt::format("<script type=\"text/plain\" id=\"{}-{}\">", name, i);
      write_array(page, choice->groups[i].mask, name);
      page += "</script>\n";
    }
  }
}

}  // namespace

std::int64_t viewer_array_bytes(const SegmentMask& mask) {
  const auto bytes = [](const auto& entries, std::int64_t each) {
    return static_cast<std::int64_t>(entries.size()) * each;
  };
  return bytes(mask.runs, 20) + bytes(mask.segments, 24) + bytes(mask.bitmaps, 8) +
         bytes(mask.row_offsets, 4) + bytes(mask.row_intervals, 8) + bytes(mask.column_offsets, 4) +
         bytes(mask.column_intervals, 8) + bytes(mask.patterns, 16) +
         bytes(mask.pattern_offsets, 4) + bytes(mask.pattern_tiles, 8);
}

Outcome<std::string> viewer_page(const SegmentMask& mask, const ViewerWords& words,
                                 const ViewerChoice* choice) {
  std::int64_t size = viewer_array_bytes(mask);
  if (choice != nullptr) {
    for (const ViewerChoice::Group& group : choice->groups) size += viewer_array_bytes(group.mask);
  }
  if (size > kMaxViewerBytes) {
    return CommandFailure{
        ExitCode::unsupported,
        fmt::format("an HTML page holds at most {} of compact arrays, and this mask has {}; write "
                    "a part of it with --crop Q0:Q1,K0:K1, or a .png or .svg picture",
                    bytes_text(kMaxViewerBytes), bytes_text(size))};
  }
  std::string page;
  page.reserve(static_cast<std::size_t>(size / 3 * 4) + (std::size_t{1} << 16));
  std::string_view rest = kViewerPage;
  for (std::size_t begin = rest.find("{{"); begin != std::string_view::npos;
       begin = rest.find("{{")) {
    const std::size_t end = rest.find("}}", begin);
    const std::string_view name = rest.substr(begin + 2, end - begin - 2);
    page += rest.substr(0, begin);
    rest.remove_prefix(end + 2);
    if (write_array(page, mask, name)) continue;
    if (name == "title") {
      page += markup_text(words.title);
    } else if (name == "description") {
      page += markup_text(words.description);
    } else if (name == "facts") {
      page += fact_list(words.facts);
    } else if (name == "header") {
      page += header_text(mask, choice);
    } else if (name == "choice") {
      page += choice_fields(choice);
    } else if (name == "others") {
      write_others(page, choice);
    } else if (name == "style") {
      page += kViewerStyle;
    } else if (name == "script") {
      for (const std::string_view script : {kViewerArrays, kViewerPainter, kViewerScript}) {
        page += script;
      }
    }
  }
  page += rest;
  return page;
}

}  // namespace fdma::maskc
