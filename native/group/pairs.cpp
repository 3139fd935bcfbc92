// See pairs.hpp for why this is right.
#include "group/pairs.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/site_text.hpp"
#include "base/sockets.hpp"
#include "collectives/checksum.hpp"
#include "transport/memory_link.hpp"

namespace phalanx {

namespace {

// Up to here a copy is cheaper than a second write to a socket (about 1 us each).
constexpr std::size_t kOnePiece = std::size_t{4} << 10;
// Where the system allows it; its default limit (net.core.wmem_max) is 208 KiB, doubled.
constexpr std::size_t kSendBuffer = std::size_t{4} << 20;

// Summed and moved at one go: still in the cache, and never long without a look at the abort.
constexpr std::size_t kGoBytes = std::size_t{256} << 10;
template <class Byte, class Body>
void for_each_go(std::span<Byte> bytes, const Body& body) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kGoBytes))) {
        body(bytes.first(std::min(bytes.size(), kGoBytes)));
    }
}

std::string name_rank(std::uint32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

PairWire make_pair_wire(int peer, int fd, std::chrono::milliseconds silence) {
    auto in = make_socket_link(peer, fd, silence);
    reserve_send_buffer(fd, kSendBuffer);
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) throw SystemError("cannot duplicate descriptor " + std::to_string(fd), errno);
    return {make_socket_link(peer, copy, silence), std::move(in)};
}

Pairs::Pairs(int rank, int channel, std::span<const int> members, std::span<const int> local,
             const Arena* arena, AbortPage& page, std::map<int, PairWire> wires,
             const Waiter& waiter, int slot_here)
    : channel_(channel), epoch_(waiter.epoch()), activity_(page.activity(slot_here)) {
    for (int peer = 0; peer < static_cast<int>(local.size()); ++peer) {
        const int in_the_world = members[static_cast<std::size_t>(peer)];
        const auto tally = [&](bool is_recv) {
            return page.tally(slot_here, channel, in_the_world, is_recv);
        };
        Lane& out = lanes_.emplace_back(peer, in_the_world, false, waiter, tally(false));
        Lane& in = lanes_.emplace_back(peer, in_the_world, true, waiter, tally(true));
        const int slot = local[static_cast<std::size_t>(peer)];
        if (peer == rank) continue;
        if (slot >= 0) {
            const auto own = arena->own_queue(channel, slot);
            const auto theirs = arena->queue_of(slot, channel);
            reset_arena_half(own);
            out.link = make_arena_link(peer, own, theirs, &page.doorbell(slot), epoch_);
            in.link = make_arena_link(peer, own, theirs, &page.doorbell(slot), epoch_);
            out.is_local = in.is_local = true;
        } else if (const auto wire = wires.find(peer); wire != wires.end()) {
            out.link = std::move(wire->second.out);
            out.waiter.sleep_early();
            in.link = std::move(wire->second.in);
            for (Link* link : {out.link.get(), in.link.get()}) {
                link->count_in(page.wire(slot_here, in_the_world, false),
                               page.wire(slot_here, in_the_world, true));
            }
        }
    }
}

std::string Pairs::describe(const Op& op, bool is_recv) {
    return std::string(is_recv ? "recv" : "send") + " #" + std::to_string(op.seq) +
           (is_recv ? " from " + name_rank(op.root) : " to " + name_rank(op.target)) + " (" +
           describe_array(op) + ")";
}

void Pairs::send(Lane& lane, const Op& op, const std::byte* x) {
    const auto header = std::as_bytes(std::span(&op, 1));
    const std::span payload(x, static_cast<std::size_t>(op.nbytes()));
    std::uint64_t mark = end_mark(op);
    const auto end = std::as_bytes(std::span(&mark, 1));
    if (payload.size() <= kOnePiece) {
        if (!lane.is_local) mark ^= checksum_of(payload);
        std::array<std::byte, sizeof(Op) + kOnePiece + sizeof mark> piece;
        auto* at = std::copy(header.begin(), header.end(), piece.data());
        at = std::copy(payload.begin(), payload.end(), at);
        at = std::copy(end.begin(), end.end(), at);
        return push(lane, {piece.data(), at});
    }
    push(lane, header);
    // A queue in the arena is no wire: nothing changes there.
    if (lane.is_local) {
        push(lane, payload);
    } else {
        // A receiver that gives up reads on, to hear this rank: there is always room then, and no
        // wait in which its last words would be heard.
        Checksum sum;
        for_each_go(payload, [&](auto go) {
            if (go.data() != payload.data()) check_wanted(lane);
            sum.add(go);
            push(lane, go);
        });
        if (payload.size() > kBufferedBytes) check_wanted(lane);
        mark ^= sum.value();
    }
    push(lane, end);
}

void Pairs::recv(Lane& lane, const Op& op, std::byte* out, FunctionRef<void()> begun) {
    Op met;
    pull(lane, std::as_writable_bytes(std::span(&met, 1)));
    // No header at all: perhaps last words; whoever catches this will listen for them.
    if (met.magic != op.magic || met.end != op.end) {
        lane.link->give_up("it sent something that is no header");
    }
    if (met != op) {
        lane.was_put_aside = met.nbytes() <= kBufferedBytes;
        throw Mismatch(name_rank(op.target) + ": " + describe(op, true) +
                       site_gap(static_cast<int>(op.target)) + " met " + name_rank(op.root) + ": " +
                       describe(met, false) + site_gap(static_cast<int>(op.root)) +
                       describe_difference(op, met));
    }
    begun();
    const std::span payload(out, static_cast<std::size_t>(op.nbytes()));
    std::uint64_t wanted = end_mark(op);
    if (lane.is_local) {
        pull(lane, payload);
    } else {
        Checksum sum;
        for_each_go(payload, [&](auto go) {
            pull(lane, go);
            sum.add(go);
        });
        wanted ^= sum.value();
    }
    std::uint64_t mark = 0;
    pull(lane, std::as_writable_bytes(std::span(&mark, 1)));
    if (mark != wanted) lane.link->give_up(kWrongSum);
}

void Pairs::push(Lane& lane, std::span<const std::byte> bytes) {
    const auto attempt = [&] {
        const std::size_t taken = lane.link->try_send(bytes);
        bytes = bytes.subspan(taken);
        return taken > 0;
    };
    while (!bytes.empty()) {
        lane.waiter.check_abort();
        if (!attempt()) wait(lane, [&] { return lane.link->can_send(); }, attempt);
    }
}

void Pairs::pull(Lane& lane, std::span<std::byte> bytes) {
    const auto attempt = [&] {
        const std::size_t got = lane.link->try_recv(bytes);
        bytes = bytes.subspan(got);
        return got > 0;
    };
    while (!bytes.empty()) {
        lane.waiter.check_abort();
        // An empty queue is waited for, not tried: only the wait knows a closed peer from a lost.
        const bool can_try = !lane.is_local || lane.link->can_recv();
        if (!can_try || !attempt()) wait(lane, [&] { return lane.link->can_recv(); }, attempt);
    }
}

// Where the peer has ended its direction, a message whose end mark has not gone will never be
// received.
void Pairs::check_wanted(Lane& lane) {
    if (lane.link->has_ended()) lane.link->give_up("the other end closed it");
}

// Returns when something has moved (a wire), or can be moved (a queue in the arena).
template <class Ready, class Try>
void Pairs::wait(Lane& lane, const Ready& ready, const Try& attempt) {
    struct Shown {
        Activity& activity;
        Lane& lane;
        std::uint64_t word;
        bool is_told = false;
        void show() {
            activity.show(word);
            // What a wire has taken goes on to a peer that does not look: a full one is waited for
            // in earnest once it has stood still for a while.
            if (is_told || !(lane.is_local || lane.is_recv || lane.waiter.has_stalled())) return;
            is_told = true;
            lane.tell((lane.seq - 1) | kTallyWaits);
        }
        ~Shown() {
            activity.hide(word);
            if (is_told) lane.tell(lane.seq - 1);
        }
    } shown{activity_, lane, Activity::word_of(channel_, lane.is_recv, lane.world_peer, lane.seq)};
    const auto missing = [&] {
        shown.show();
        Missing who;
        who.ranks.push_back(lane.peer);
        if (lane.is_local && lane.link->has_ended()) who.closed_rank = lane.peer;
        return who;
    };
    if (lane.is_local) return lane.waiter.until(ready, missing);
    pollfd polled{lane.link->descriptor(), POLLIN, 0};
    if (!lane.is_recv) polled.events = POLLOUT | kPeerEnds;
    lane.waiter.until_moved(
        attempt,
        [&]() -> std::span<const pollfd> {
            shown.show();
            if (!lane.is_recv) check_wanted(lane);
            if (lane.waiter.is_patience_over()) {
                lane.link->check_alive();
                listen(lane);
            }
            return {&polled, 1};
        },
        missing);
}

// In a long wait: has another peer given the epoch up meanwhile? Nothing of what it had sent before
// is taken: its messages stay good if it has only closed.
void Pairs::listen(const Lane& own) {
    for (Lane& lane : lanes_) {
        if (!lane.is_recv || lane.is_local || lane.link == nullptr || lane.peer == own.peer ||
            lane.is_overheard.load() || !lane.link->has_ended()) {
            continue;
        }
        auto words = lane.link->overhear(epoch_);
        if (words && words->kind != AbortKind::kClosed) throw Aborted(std::move(*words));
        lane.is_overheard.store(true);
    }
}

std::optional<Reason> Pairs::hear(Lane& lane) noexcept {
    if (lane.is_local) return std::nullopt;
    if (lane.is_recv) return lane.link->hear_last_words(epoch_);
    return this->lane(lane.peer, true).link->overhear(epoch_);
}

void Pairs::say_last_words(const Reason& reason, const Lane* held) noexcept {
    for (Lane& lane : lanes_) {
        if (lane.is_recv || lane.is_local) continue;
        const bool is_held = &lane == held;
        if (!is_held && !lane.turn.try_take()) continue;  // whoever is inside will say it
        if (lane.link != nullptr) lane.link->say_last_words(epoch_, reason);
        if (!is_held) lane.turn.give();
    }
}

void Pairs::close(const Reason& reason) noexcept {
    for (Lane& lane : lanes_) {
        if (lane.link == nullptr) continue;
        if (lane.is_local) {
            if (!lane.is_recv) lane.link->finish();
        } else if (lane.is_recv) {
            // A socket that is closed with bytes unread throws away what it has still to send.
            (void)lane.link->hear_last_words(epoch_);
        } else {
            lane.link->say_last_words(epoch_, reason);
        }
    }
    for (Lane& lane : lanes_) lane.link.reset();
}

}  // namespace phalanx
