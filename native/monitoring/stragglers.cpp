// See stragglers.hpp.
#include "monitoring/stragglers.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>

#include "monitoring/trace_summary.hpp"

namespace phalanx {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

bool is_same_collective(const EntryTime& one, const EntryTime& other) noexcept {
    return one.group == other.group && one.place == other.place;
}

// The latest time at which a rank entered, relative to the last rank, and the clock error in it.
struct AtLatest {
    std::int64_t entered;
    std::int64_t doubt;
};

// The time at which the first rank left the collective, or kNever.
std::int64_t is_over_at(std::span<const EntryTime> collective) noexcept {
    std::int64_t over = kNever;
    for (const EntryTime& its : collective) {
        if (its.ended != 0) over = std::min(over, clamp_untrusted(its.ended));
    }
    return over;
}

bool is_due(std::span<const EntryTime> collective, const Comparable& which) {
    if (collective.size() < 2) return false;
    const auto over = is_over_at(collective);
    if (over == kNever || over <= which.from || over > which.until) return false;
    const auto members = which.members.find(collective.front().group);
    return members == which.members.end() ||
           static_cast<std::int64_t>(collective.size()) >= members->second;
}

// Compares the entry times; the last rank entered last.
void compare(std::span<const EntryTime> collective, std::vector<AtLatest>& others,
             StragglerReport& found) {
    const EntryTime& last = collective.back();
    const auto entered = clamp_untrusted(last.entered);
    others.clear();
    for (const EntryTime& its : collective.first(collective.size() - 1)) {
        std::int64_t doubt = 0;
        if (its.host != last.host) {
            doubt = add_untrusted(std::clamp<std::int64_t>(its.unsure, 0, kMaxUntrusted),
                                  std::clamp<std::int64_t>(last.unsure, 0, kMaxUntrusted));
        }
        others.push_back({add_untrusted(clamp_untrusted(its.entered), doubt), doubt});
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
    its.late = add_untrusted(its.late, late);
    its.worst = std::max(its.worst, late);
}

}  // namespace

StragglerReport find_stragglers(std::vector<EntryTime> seen, const Comparable& which) {
    std::stable_sort(seen.begin(), seen.end(), [](const EntryTime& one, const EntryTime& other) {
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
    std::stable_sort(seen.begin(), seen.end(), [](const EntryTime& one, const EntryTime& other) {
        return std::tie(one.group, one.place, one.entered) <
               std::tie(other.group, other.place, other.entered);
    });
    StragglerReport found;
    std::vector<AtLatest> others;
    for (auto begin = seen.begin(); begin != seen.end();) {
        const auto end = std::find_if(begin, seen.end(), [&](const EntryTime& its) {
            return !is_same_collective(its, *begin);
        });
        if (is_due({begin, end}, which)) compare({begin, end}, others, found);
        begin = end;
    }
    return found;
}

}  // namespace phalanx
