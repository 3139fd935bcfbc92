// Build error texts with call sites in the users' programs. Only the rank itself knows its call
// site, so a text may have gaps: one for each rank with an unknown call site.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

// Whether a file name is a notebook cell's: of our ranks (`phalanx.rank`: a hash of the text), of
// ipykernel or of IPython.
bool is_cell_file(std::string_view file);
// Placeholder for the call site of a rank until it is known.
std::string site_gap(int rank);
// Ranks with gaps in the text, in order.
std::vector<int> site_gaps(std::string_view text);
// " at train.py:31", or "" for an unknown site.
std::string at_site(std::string_view site);
// Put at_site() into all gaps of a rank.
void fill_site_gap(std::string& text, int rank, std::string_view site);
// Remove all gaps, also one that was cut off in the middle.
void close_site_gaps(std::string& text);

}  // namespace phalanx
