// A gap is a rank between two marks that no text of ours has.
#include "base/site_text.hpp"

#include <charconv>

namespace phalanx {

namespace {
constexpr char kMark = '\x1e';
}  // namespace

std::string site_gap(int rank) { return kMark + std::to_string(rank) + kMark; }

std::vector<int> site_gaps(std::string_view text) {
    std::vector<int> ranks;
    for (auto begin = text.find(kMark); begin != std::string_view::npos;) {
        const auto end = text.find(kMark, begin + 1);
        if (end == std::string_view::npos) break;
        int rank = -1;
        const auto [stop, error] =
            std::from_chars(text.data() + begin + 1, text.data() + end, rank);
        if (error == std::errc() && stop == text.data() + end) ranks.push_back(rank);
        begin = text.find(kMark, end + 1);
    }
    return ranks;
}

std::string at_site(std::string_view site) {
    return site.empty() ? std::string() : " at " + std::string(site);
}

void fill_site_gap(std::string& text, int rank, std::string_view site) {
    const std::string gap = site_gap(rank);
    const std::string filling = at_site(site);
    for (auto at = text.find(gap); at != std::string::npos;
         at = text.find(gap, at + filling.size())) {
        text.replace(at, gap.size(), filling);
    }
}

void close_site_gaps(std::string& text) {
    for (auto begin = text.find(kMark); begin != std::string::npos; begin = text.find(kMark)) {
        const auto end = text.find(kMark, begin + 1);
        text.erase(begin, end == std::string::npos ? end : end - begin + 1);
    }
}

}  // namespace phalanx
