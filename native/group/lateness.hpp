// Who came last to collectives, and by how much. Where ranks have clocks of their own, nothing is
// said that these may be wrong about. Pure: when each rank entered which one in, ranks and times
// out.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace phalanx {

// When a rank entered a collective, on the clock of its host, and by how much that clock may be
// wrong beside another host's (ns). As Python packs it: words of 64 bits.
struct Entered {
    std::int64_t rank;
    std::uint64_t group;
    std::uint64_t place;
    std::uint64_t entered;
    std::uint64_t ended;  // 0: it runs
    std::int64_t host;
    std::int64_t unsure;
};
static_assert(sizeof(Entered) == 7 * sizeof(std::uint64_t));

// A rank that came last to `count` collectives: by how much after the median of the others (ns).
struct LateRank {
    std::int64_t count = 0;
    std::int64_t late = 0;
    std::int64_t worst = 0;
};

struct Compared {
    std::int64_t n_compared = 0;
    std::map<std::int64_t, LateRank> late;  // by rank
    std::int64_t n_unsure = 0;              // compared, but nobody can say who came last
    std::int64_t unsure = 0;                // by so much the clocks may be wrong, at most (ns)
};

// Which collectives are compared: those whose first rank was through after `from` and not after
// `until`, and of whose group as many entries are there as it has members (where that is known).
struct Comparable {
    std::int64_t from;
    std::int64_t until;
    std::map<std::uint64_t, std::int64_t> members;
};

// In any order. Of a rank and collective that is there twice, the later end counts: an operation
// that ran at one look may be over at the next.
[[nodiscard]] Compared late_ranks(std::vector<Entered> seen, const Comparable& which);

}  // namespace phalanx
