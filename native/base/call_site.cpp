// Fill in call sites in error texts. A gap is a rank number between two marks; texts have no marks.
#include "base/call_site.hpp"

#include <charconv>

namespace phalanx {

namespace {
constexpr char kMark = '\x1e';

// Whether a text is `begin`, then one or more of `digits`, then `end`.
bool is_between(std::string_view text, std::string_view begin, std::string_view digits,
                std::string_view end) {
    if (text.size() <= begin.size() + end.size()) return false;
    const auto middle = text.substr(begin.size(), text.size() - begin.size() - end.size());
    return text.starts_with(begin) && text.ends_with(end) &&
           middle.find_first_not_of(digits) == std::string_view::npos;
}
}  // namespace

bool is_cell_file(std::string_view file) {
    constexpr std::string_view kDecimal = "0123456789";
    if (is_between(file, "<cell ", "0123456789abcdef", ">")) return true;
    if (file.starts_with("<ipython-input-") && file.ends_with(">")) return true;
    const auto slash = file.rfind('/');  // ipykernel's names: /tmp/ipykernel_123/456.py
    if (slash == std::string_view::npos || slash == 0) return false;
    const auto before = file.rfind('/', slash - 1);
    if (before == std::string_view::npos) return false;
    return is_between(file.substr(before, slash - before), "/ipykernel_", kDecimal, "") &&
           is_between(file.substr(slash), "/", kDecimal, ".py");
}

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
