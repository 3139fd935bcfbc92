// Messages from one rank of a group to another: a lane for every peer and direction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.hpp"
#include "base/turn.hpp"
#include "collectives/op.hpp"
#include "transport/abort_page.hpp"
#include "transport/arena.hpp"
#include "transport/link.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

// The two directions of one connection, each of which another thread may be using.
struct PairWire {
    std::unique_ptr<Link> out;
    std::unique_ptr<Link> in;
};
// Of a connected stream socket; takes ownership of fd. As make_socket_link.
PairWire make_pair_wire(int peer, int fd, std::chrono::milliseconds silence = {});

// A peer on the same host is reached through a queue in the arena, any other through a wire of its
// own; collectives use neither. So a message that nobody has received yet is in nobody's way.
//
// Concurrency. A lane is one pair and one direction. Its turn lets one thread in; link, waiter and
// number belong to that thread. The two lanes of a pair share memory, or a socket, but no C++
// object. What threads do to lanes that are not theirs: take the turn if it is free, and look at
// has_ended() and overhear() of a link, which stays until all turns were taken (close).
//
// A message is an Op as the sender would describe it, the payload, and an end mark: last words may
// have taken the place of the rest of a payload, but they do not end with this mark.
//
// Buffering. A queue of an arena with the default size, and the send buffer of a wire, hold a
// message of kBufferedBytes: it can be sent whether or not the receiver has come.
//
// A new epoch: the constructor resets the own halves, and the callers meet before the first
// message. A rank of the old epoch that still reads finds counters that contradict its own, or old
// bytes; the old epoch was aborted before, and a receiver looks at the abort word after its last
// read. A rank that closes leaves its half as it is: the region outlives the group and the process
// (it is the supervisor's), and is reset by the next group of this slot and channel, which by the
// same rule no receiver of the old one can be waiting for.
class Pairs {
  public:
    static constexpr std::size_t kBufferedBytes = std::size_t{64} << 10;

    struct Lane {
        Lane(int the_peer, int in_the_world, bool is_for_recv, const Waiter& the_waiter,
             Tally* the_tally)
            : peer(the_peer),
              world_peer(in_the_world),
              is_recv(is_for_recv),
              waiter(the_waiter),
              tally(the_tally) {}
        // On the page: so many messages have passed, or the next one is waited for.
        void tell(std::uint64_t passed) const noexcept {
            if (tally != nullptr) tally->store(passed, std::memory_order_release);
        }
        int peer;
        int world_peer;  // what the page and people call it
        bool is_recv;
        bool is_local = false;
        Turn turn;
        std::unique_ptr<Link> link;  // none to this rank itself, nor where no wire was given
        Waiter waiter;
        std::uint64_t seq = 0;
        Tally* tally;                           // on the page, where it has room
        bool was_put_aside = false;             // after a mismatch: its sender may have gone on
        std::atomic<bool> is_overheard{false};  // its peer has left in peace
    };

    // local[r] is the arena slot of rank r where it shares the arena with this one, else -1.
    // members[r] is what the world calls rank r. `slot` is this rank's on the page.
    Pairs(int rank, int channel, std::span<const int> members, std::span<const int> local,
          const Arena* arena, AbortPage& page, std::map<int, PairWire> wires, const Waiter& waiter,
          int slot);

    [[nodiscard]] Lane& lane(int peer, bool is_recv) {
        return lanes_[2 * static_cast<std::size_t>(peer) + (is_recv ? 1 : 0)];
    }
    [[nodiscard]] std::deque<Lane>& lanes() noexcept { return lanes_; }

    // For the holder of the lane's turn, which has begun its waiter. `op` is the sender's.
    void send(Lane& lane, const Op& op, const std::byte* x);
    // Throws Mismatch before anything is written to out; once it has called `begun` it may have
    // been.
    void recv(Lane& lane, const Op& op, std::byte* out, FunctionRef<void()> begun);
    // The message has passed.
    static void count(Lane& lane) noexcept { lane.tell(lane.seq); }

    // Why the peer of this lane has left, if it said so.
    [[nodiscard]] std::optional<Reason> hear(Lane& lane) noexcept;
    // On all wires whose turn is free, and on `held`, whose turn the caller has.
    void say_last_words(const Reason& reason, const Lane* held) noexcept;
    // For the holder of all turns: quiet, but a peer that still expects this rank is told.
    void close(const Reason& reason) noexcept;

    // "recv #3 from rank 0 (float32, shape (4,))"
    static std::string describe(const Op& op, bool is_recv);

  private:
    void push(Lane& lane, std::span<const std::byte> bytes);
    void pull(Lane& lane, std::span<std::byte> bytes);
    template <class Ready, class Try>
    void wait(Lane& lane, const Ready& ready, const Try& attempt);
    static void check_wanted(Lane& lane);
    void listen(const Lane& own);

    int channel_;
    std::uint64_t epoch_;
    Activity& activity_;
    std::deque<Lane> lanes_;  // 2 * peer, and one more to receive; a deque: lanes never move
};

}  // namespace phalanx
