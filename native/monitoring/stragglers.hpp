// Finds the ranks that came last to collectives, and their delays. Where hosts have separate
// clocks, differences within the clock error are not reported. Pure functions: entry times in, late
// ranks and delays out.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace phalanx {

// The entry of a rank into a collective, on its host's clock, and the possible error of that clock
// relative to other hosts (ns). Python packs it as 64-bit words.
struct EntryTime {
    std::int64_t rank;
    std::uint64_t group;
    std::uint64_t place;
    std::uint64_t entered;
    std::uint64_t ended;  // 0: still running
    std::int64_t host;
    std::int64_t unsure;
};
static_assert(sizeof(EntryTime) == 7 * sizeof(std::uint64_t));

// A rank that came last to `count` collectives, with delays after the median of the others (ns).
struct LateRank {
    std::int64_t count = 0;
    std::int64_t late = 0;
    std::int64_t worst = 0;
};

struct StragglerReport {
    std::int64_t n_compared = 0;
    std::map<std::int64_t, LateRank> late;  // by rank
    std::int64_t n_unsure = 0;              // compared, but the clock error hides the last rank
    std::int64_t unsure = 0;                // largest possible clock error (ns)
};

// Selects the collectives to compare: the first rank left after `from` and not after `until`, and
// every member of the group has an entry (if the number of members is known).
struct Comparable {
    std::int64_t from;
    std::int64_t until;
    std::map<std::uint64_t, std::int64_t> members;
};

// Entries may be in any order. If a rank and collective appear twice, the later end counts: an
// operation that was running at one look may be over at the next.
[[nodiscard]] StragglerReport find_stragglers(std::vector<EntryTime> seen, const Comparable& which);

}  // namespace phalanx
