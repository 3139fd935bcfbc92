// Links that need no network: between threads of a process (with hooks for faults), and between
// the ranks of one host through memory that they share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "transport/abort_page.hpp"
#include "transport/link.hpp"

namespace phalanx {

// What a test may do to a pair of links, at any time, from any thread.
struct LinkFaults {
    std::atomic<std::size_t> most_per_call{SIZE_MAX};   // short reads and writes
    std::atomic<std::uint64_t> bytes_left{UINT64_MAX};  // sent by both, then all is frozen
    std::atomic<bool> is_broken{false};                 // both ends are lost
};

// Two ends in one process; `capacity` bytes may be under way each way. links.first is the end of
// `rank`, links.second that of `peer`.
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_memory_links(
    int rank, int peer, std::size_t capacity, std::shared_ptr<LinkFaults> faults = nullptr);

// Concurrency of a queue in an arena: one producer, one consumer, each of which writes its own half
// only. `head` counts the bytes ever produced and is stored (release) after the data; `tail`, which
// lies in the *consumer's* half, counts the bytes ever consumed and is stored (release) after they
// were read. Both only grow. What a peer's counter says is checked before it is used: a peer that
// claims more than the ring holds is lost, not followed. Two links may be made of one queue, one to
// send and one to receive, each for a thread of its own: they write different counters.
//
// A step at a time is moved and told, so that one end reads while the other writes.
//
// `wants_streaming` is advice of the consumer to the producer: lines that were just written come to
// it slowly, so they had better be written past the caches (base/placement.hpp). Any value is safe.
//
// `ended_epoch` is the last epoch in which the producer has left: an old group that is closed late
// does not end the queue for the one that came after it.
struct ArenaHalf {
    alignas(kCacheLine) std::atomic<std::uint64_t> head;
    std::atomic<std::uint64_t> ended_epoch;
    alignas(kCacheLine) std::atomic<std::uint64_t> tail;
    std::atomic<std::uint64_t> wants_streaming;
    alignas(kCacheLine) std::byte data[1];  // up to the end of the span

    static constexpr std::size_t kOverhead = 3 * kCacheLine;
};

// Empties the half of a queue that this rank writes, before the peer may use it.
void reset_arena_half(std::span<std::byte> own);
// `own` is memory that only this rank writes and has reset, `theirs` the peer's of the same size;
// `bell` is rung when there is something new for the peer. `is_always_far`: for tests, as whoever
// reads from it takes the cores to sit.
std::unique_ptr<Link> make_arena_link(int peer, std::span<std::byte> own,
                                      std::span<const std::byte> theirs, Doorbell* bell,
                                      std::uint64_t epoch, bool is_always_far = false);

}  // namespace phalanx
