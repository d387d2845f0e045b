#include "inputs/file_listing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/file_reading.hpp"

namespace fdma::maskc {
namespace {

constexpr std::size_t kMaxLines = 8;
constexpr std::string_view kMasksPrefix = "/masks/";

/// One thing that a file holds.
struct Candidate {
  std::string name;  ///< "mask" or "/group/dataset"
  std::string facts;
  bool fits = true;
};

bool is_numeric(std::string_view type) {
  return type == "boolean" || type.starts_with("int") || type.starts_with("uint") ||
         type.starts_with("float") || type.starts_with("bfloat") || type.starts_with("bitfield");
}

// The --dims that a dense dataset of these extents can have; empty if it is no mask.
std::string fitting_dims(const std::vector<std::int64_t>& extents) {
  switch (extents.size()) {
    case 2:
      return extents[0] == extents[1] ? "--dims qk" : "--dims qk or bk";
    case 3:
      return extents[1] == 1 ? "--dims bk, bqk or hqk" : "--dims bqk or hqk";
    case 4:
      return extents[1] == 1 && extents[2] == 1 ? "--dims bk or bhqk" : "--dims bhqk";
    default:
      return {};
  }
}

Candidate candidate_of(const DatasetEntry& entry, Wanted wanted) {
  Candidate candidate{entry.path,
                      fmt::format("{} [{}]", entry.type, fmt::join(entry.extents, ", ")), true};
  if (wanted == Wanted::table) {
    candidate.fits = is_numeric(entry.type) && entry.extents.size() <= kMaxRank;
    return candidate;
  }
  const std::string dims = fitting_dims(entry.extents);
  candidate.fits = is_numeric(entry.type) && !dims.empty();
  if (candidate.fits) candidate.facts += "  " + dims;
  return candidate;
}

std::string_view last_part(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

// The candidate whose name, or the last part of it, is a slip away from `missing`.
const Candidate* nearest_candidate(const std::vector<Candidate>& candidates,
                                   std::string_view missing) {
  // Any single letter is a slip away from any other.
  constexpr std::size_t kShortest = 3;
  if (last_part(missing).size() < kShortest) return nullptr;
  for (const bool is_whole : {true, false}) {
    std::vector<std::string_view> names;
    for (const Candidate& candidate : candidates) {
      names.push_back(is_whole ? std::string_view(candidate.name) : last_part(candidate.name));
    }
    const auto near = nearest(is_whole ? missing : last_part(missing), names);
    if (!near) continue;
    const auto found = std::find(names.begin(), names.end(), *near);
    return &candidates[static_cast<std::size_t>(found - names.begin())];
  }
  return nullptr;
}

}  // namespace

std::string file_listing(const std::string& file, const std::string& missing, Wanted wanted) {
  const Result<FileContents> contents = list_datasets_of_file(file);
  if (!contents) return {};
  std::vector<Candidate> candidates;
  bool is_mask_file = false;
  if (const Result<std::vector<std::string>> masks = list_masks_of_any_file(file)) {
    is_mask_file = true;
    if (wanted == Wanted::mask) {
      for (const std::string& name : *masks) candidates.push_back({name, "a mask of FDMA", true});
    }
  }
  for (const DatasetEntry& entry : contents->datasets) {
    if (is_mask_file && entry.path.starts_with(kMasksPrefix)) continue;
    candidates.push_back(candidate_of(entry, wanted));
  }
  const std::size_t num_all = candidates.size();
  if (num_all == 0) return fmt::format("; {} holds no dataset", file);
  std::string text;
  const bool any_fits = std::any_of(candidates.begin(), candidates.end(),
                                    [](const Candidate& candidate) { return candidate.fits; });
  if (any_fits) {
    std::erase_if(candidates, [](const Candidate& candidate) { return !candidate.fits; });
    if (const Candidate* near = nearest_candidate(candidates, missing)) {
      text = fmt::format("; did you mean {}:{}?", file, near->name);
    }
  }
  text += fmt::format("\n{} holds{}\n", file,
                      any_fits                  ? ""
                      : wanted == Wanted::table ? " nothing that can be a table"
                                                : " nothing that can be a mask");
  std::size_t width = 0;
  const std::size_t num_shown = std::min(candidates.size(), kMaxLines);
  for (std::size_t i = 0; i < num_shown; ++i) width = std::max(width, candidates[i].name.size());
  for (std::size_t i = 0; i < num_shown; ++i) {
    text += fmt::format("  {}:{:<{}}  {}\n", file, candidates[i].name, width, candidates[i].facts);
  }
  if (num_shown < num_all || !contents->is_complete) {
    text += fmt::format("  and more; fdma-maskc ls {} lists everything\n", file);
  }
  text.pop_back();
  return text;
}

Error with_listing(Error error, const std::string& file, const std::string& dataset,
                   Wanted wanted) {
  if (error.code != ErrorCode::io && error.code != ErrorCode::corrupt_file) return error;
  const Result<FileContents> contents = list_datasets_of_file(file);
  if (!contents) return error;
  for (const DatasetEntry& entry : contents->datasets) {
    if (entry.path == dataset) return error;  // it is there, and something else is wrong with it
  }
  if (const Result<bool> is_there = has_object_in_file(file, dataset); is_there && *is_there) {
    if (error.code != ErrorCode::corrupt_file ||
        error.message.find("not a dataset") == std::string::npos) {
      return error;
    }
  }
  error.message += file_listing(file, dataset, wanted);
  return error;
}

}  // namespace fdma::maskc
