// Make links between the ranks of one host: a queue in the arena for each direction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "shm/control_page.hpp"
#include "transport/link.hpp"

namespace phalanx {

// Concurrency of a queue in an arena: one producer and one consumer, and each writes only its own
// half. `head` counts all bytes produced and is stored (release) after the data. `tail`, in the
// *consumer's* half, counts all bytes consumed and is stored (release) after they were read. Both
// only grow. A peer's counter is checked before use: a peer that claims more than the ring holds is
// lost. Two links may share one queue, one to send and one to receive, each for its own thread:
// they write different counters.
//
// Bytes are moved and published step by step, so that one end reads while the other writes.
//
// `wants_streaming` is advice of the consumer to the producer: the consumer reads lines slowly that
// were just written, so the producer should write them past the caches (cache_distance.hpp). Any
// value is safe.
//
// `ended_epoch` is the last epoch in which the producer has left: an old group that is closed late
// does not end the queue of the next group.
struct ArenaHalf {
    alignas(kCacheLine) std::atomic<std::uint64_t> head;
    std::atomic<std::uint64_t> ended_epoch;
    alignas(kCacheLine) std::atomic<std::uint64_t> tail;
    std::atomic<std::uint64_t> wants_streaming;

    // The bytes of the ring follow this header, up to the end of the span.
    [[nodiscard]] static std::byte* data_of(std::span<std::byte> half) noexcept {
        return half.data() + sizeof(ArenaHalf);
    }
    [[nodiscard]] static const std::byte* data_of(std::span<const std::byte> half) noexcept {
        return half.data() + sizeof(ArenaHalf);
    }
};

// Empty the half of a queue that this rank writes, before the peer may use the queue.
void reset_arena_half(std::span<std::byte> own);
// Make a link. Only this rank writes `own`, and has reset it; `theirs` is the peer's half, of the
// same size. `bell` is rung when there are new bytes for the peer. `is_always_far`: the reader acts
// as if the cores share no cache (for tests).
std::unique_ptr<Link> make_arena_link(int peer, std::span<std::byte> own,
                                      std::span<const std::byte> theirs, Doorbell* bell,
                                      std::uint64_t epoch, bool is_always_far = false);

}  // namespace phalanx
