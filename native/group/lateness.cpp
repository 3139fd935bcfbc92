// See lateness.hpp.
#include "group/lateness.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>

#include "group/spans.hpp"

namespace phalanx {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

bool is_same_collective(const Entered& one, const Entered& other) noexcept {
    return one.group == other.group && one.place == other.place;
}

// When a rank entered, as late as that may be beside the last one's, and how much of it is doubt.
struct AtLatest {
    std::int64_t entered;
    std::int64_t doubt;
};

// When the first rank was through with it, or kNever.
std::int64_t is_over_at(std::span<const Entered> collective) noexcept {
    std::int64_t over = kNever;
    for (const Entered& its : collective) {
        if (its.ended != 0) over = std::min(over, told(its.ended));
    }
    return over;
}

bool is_due(std::span<const Entered> collective, const Comparable& which) {
    if (collective.size() < 2) return false;
    const auto over = is_over_at(collective);
    if (over == kNever || over <= which.from || over > which.until) return false;
    const auto members = which.members.find(collective.front().group);
    return members == which.members.end() ||
           static_cast<std::int64_t>(collective.size()) >= members->second;
}

// By when they entered: the last one came last.
void compare(std::span<const Entered> collective, std::vector<AtLatest>& others, Compared& found) {
    const Entered& last = collective.back();
    const auto entered = told(last.entered);
    others.clear();
    for (const Entered& its : collective.first(collective.size() - 1)) {
        std::int64_t doubt = 0;
        if (its.host != last.host) {
            doubt = told_sum(std::clamp<std::int64_t>(its.unsure, 0, kMostTold),
                             std::clamp<std::int64_t>(last.unsure, 0, kMostTold));
        }
        others.push_back({told_sum(told(its.entered), doubt), doubt});
    }
    std::stable_sort(others.begin(), others.end(), [](const AtLatest& one, const AtLatest& other) {
        return one.entered < other.entered;
    });
    ++found.n_compared;
    if (entered < others.back().entered) {
        ++found.n_unsure;
        found.unsure = std::max(found.unsure, others.back().doubt);
        return;
    }
    const auto low = others[(others.size() - 1) / 2].entered;
    const auto late = entered - std::midpoint(low, others[others.size() / 2].entered);
    LateRank& its = found.late[last.rank];
    ++its.count;
    its.late = told_sum(its.late, late);
    its.worst = std::max(its.worst, late);
}

}  // namespace

Compared late_ranks(std::vector<Entered> seen, const Comparable& which) {
    std::stable_sort(seen.begin(), seen.end(), [](const Entered& one, const Entered& other) {
        return std::tie(one.group, one.place, one.rank, one.ended) <
               std::tie(other.group, other.place, other.rank, other.ended);
    });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
        const bool is_again = kept > 0 && is_same_collective(seen[i], seen[kept - 1]) &&
                              seen[i].rank == seen[kept - 1].rank;
        seen[is_again ? kept - 1 : kept++] = seen[i];
    }
    seen.resize(kept);
    std::stable_sort(seen.begin(), seen.end(), [](const Entered& one, const Entered& other) {
        return std::tie(one.group, one.place, one.entered) <
               std::tie(other.group, other.place, other.entered);
    });
    Compared found;
    std::vector<AtLatest> others;
    for (auto begin = seen.begin(); begin != seen.end();) {
        const auto end = std::find_if(begin, seen.end(), [&](const Entered& its) {
            return !is_same_collective(its, *begin);
        });
        if (is_due({begin, end}, which)) compare({begin, end}, others, found);
        begin = end;
    }
    return found;
}

}  // namespace phalanx
