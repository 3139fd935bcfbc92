// Make links between threads of a process, with fault hooks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "transport/link.hpp"

namespace phalanx {

// Faults that a test may set on a pair of links, at any time, from any thread.
struct LinkFaults {
    std::atomic<std::size_t> most_per_call{SIZE_MAX};   // short reads and writes
    std::atomic<std::uint64_t> bytes_left{UINT64_MAX};  // bytes that both may send before a freeze
    std::atomic<bool> is_broken{false};                 // both ends are lost
};

// Two ends in one process, with `capacity` bytes of buffer in each direction.
// links.first is the end of `rank`, links.second is the end of `peer`.
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_memory_links(
    int rank, int peer, std::size_t capacity, std::shared_ptr<LinkFaults> faults = nullptr);

}  // namespace phalanx
