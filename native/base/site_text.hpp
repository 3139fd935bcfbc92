// Error texts that name places in the callers' programs, some of which only other ranks know: a
// text may have gaps, one for each rank that has yet to say where it has called.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

// Whether a file's name is that of a notebook's cell: our ranks' own (`phalanx.rank`: a hash of its
// text), ipykernel's or IPython's.
bool is_cell_file(std::string_view file);
// Stands for where that rank has called, until this is known.
std::string site_gap(int rank);
// The ranks whose places are not known yet, as they appear.
std::vector<int> site_gaps(std::string_view text);
// " at train.py:31", or nothing for an unknown place.
std::string at_site(std::string_view site);
// Puts at_site() in all gaps of a rank.
void fill_site_gap(std::string& text, int rank, std::string_view site);
// Takes all gaps out, also one that was cut off in the middle.
void close_site_gaps(std::string& text);

}  // namespace phalanx
