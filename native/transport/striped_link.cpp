// Implement a link over several sockets to one peer: one stream of bytes in blocks of equal size.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "os/descriptors.hpp"
#include "os/sockets.hpp"
#include "transport/link.hpp"

namespace phalanx {

namespace {

// Most bytes of one call, as for one socket.
constexpr std::size_t kLargestCall = std::size_t{1} << 20;
// A peer that is gone has closed all its sockets, but the closes arrive at different times.
constexpr int kEndBites = 20;
constexpr std::chrono::milliseconds kEndBite{1};

}  // namespace

// Block b of the stream travels on stripe b % k, so both ends know the place of each byte without a
// header. The sender fills every stripe in turn until the present one is full. The receiver takes
// the blocks in order, while early blocks wait in the kernel's buffers. No deadlock: while the
// receiver waits for a stripe, it has taken all bytes sent before. So the sender is at the same
// block, or the awaited bytes are on their way.
//
// The stream is as fast as k times the slowest stripe. Rejected: numbered blocks on any stripe with
// room. They would use unequal paths fully, but need a header per block and memory for early
// blocks, and unequal paths are not paired in practice (phalanx config pairs only equal ones).
//
// If one stripe fails, the link fails, because bytes are missing; the text names the stripe.
class StripedLink final : public Link {
  public:
    StripedLink(int peer, std::vector<std::unique_ptr<Link>> stripes,
                std::vector<std::string> paths, std::size_t block)
        : Link(peer), stripes_(std::move(stripes)), paths_(std::move(paths)), block_(block) {
        if (stripes_.size() < 2 || block_ == 0)
            throw UsageError("a striped link needs two stripes");
        paths_.resize(stripes_.size());
        out_.left = in_.left = block_;
    }

    // True only once all stripes have ended: bytes on the others still belong to this stream.
    [[nodiscard]] bool has_ended() noexcept override {
        return std::all_of(stripes_.begin(), stripes_.end(),
                           [](const auto& stripe) { return stripe->has_ended(); });
    }
    void add_polled(std::vector<pollfd>& polled, int events) const override {
        if ((events & POLLIN) != 0) stripes_[in_.stripe]->add_polled(polled, POLLIN);
        if ((events & POLLOUT) != 0) stripes_[out_.stripe]->add_polled(polled, POLLOUT);
    }
    [[nodiscard]] std::vector<std::string> paths() const override { return paths_; }

  protected:
    std::size_t do_send(Parts parts) override {
        std::size_t sent = 0;
        while (sent < kLargestCall) {
            // Take the part of the remaining bytes that lies in this block.
            std::array<std::span<const std::byte>, kMaxParts> now;
            std::size_t count = 0;
            std::size_t gone = sent;
            std::size_t room = std::min(out_.left, kLargestCall - sent);
            for (auto part : parts.first(std::min(parts.size(), kMaxParts))) {
                const auto skipped = std::min(gone, part.size());
                gone -= skipped;
                part = part.subspan(skipped).first(std::min(part.size() - skipped, room));
                room -= part.size();
                if (!part.empty()) now[count++] = part;
            }
            if (count == 0) break;
            const Parts ready = std::span(now).first(count);
            const auto moved = on(out_, sent, [&](Link& stripe) { return stripe.do_send(ready); });
            sent += moved;
            std::size_t wanted = 0;
            for (const auto part : ready) wanted += part.size();
            if (moved < wanted) break;
        }
        return sent;
    }

    std::size_t do_recv(std::span<std::byte> bytes, std::span<std::byte> more) override {
        std::size_t got = 0;
        while (got < std::min(bytes.size() + more.size(), kLargestCall)) {
            const auto first = bytes.subspan(std::min(got, bytes.size()));
            const auto second = more.subspan(got - std::min(got, bytes.size()));
            const auto here = first.first(std::min(first.size(), in_.left));
            const auto there = second.first(std::min(second.size(), in_.left - here.size()));
            const auto moved =
                on(in_, got, [&](Link& stripe) { return stripe.do_recv(here, there); });
            got += moved;
            if (moved < here.size() + there.size()) break;
        }
        return got;
    }

    void do_finish() noexcept override {
        for (const auto& stripe : stripes_) stripe->do_finish();
    }
    void do_check_alive() override {
        std::size_t silent = 0;
        std::string why;
        std::string which;
        for (std::size_t i = 0; i < stripes_.size(); ++i) {
            try {
                stripes_[i]->do_check_alive();
            } catch (const PeerLost& error) {
                if (silent++ == 0) which = name(i) + ": ";
                why = error.what();
            }
        }
        if (silent > 0) lose((silent < stripes_.size() ? which : "") + why, true);
    }

  private:
    // Position of one direction of the stream.
    struct Cursor {
        std::size_t stripe = 0;
        std::size_t left = 0;  // bytes left in the block
        std::string lost;      // cause of failure
        bool was_silent = false;
    };

    // Moves bytes of this block. `before` bytes were moved in this call already and stay good if
    // the stripe fails now. A failed stripe is not tried again: a socket reports its error only
    // once.
    template <class Move>
    std::size_t on(Cursor& at, std::size_t before, const Move& move) {
        if (!at.lost.empty()) {
            if (before > 0) return 0;
            lose(at.lost, at.was_silent);
        }
        std::size_t moved = 0;
        try {
            moved = move(*stripes_[at.stripe]);
        } catch (const PeerLost& error) {
            at.lost = have_all_ended() ? error.what() : name(at.stripe) + ": " + error.what();
            at.was_silent = error.is_silent;
            if (before > 0) return 0;
            lose(at.lost, at.was_silent);
        }
        at.left -= moved;
        if (at.left == 0) {
            at.stripe = (at.stripe + 1) % stripes_.size();
            at.left = block_;
        }
        return moved;
    }

    // Whether the peer itself is gone, and not only one path to it.
    bool have_all_ended() {
        for (int bites = 0; bites < kEndBites; ++bites) {
            if (has_ended()) return true;
            std::this_thread::sleep_for(kEndBite);
        }
        return false;
    }
    [[nodiscard]] std::string name(std::size_t stripe) const {
        auto text =
            "connection " + std::to_string(stripe + 1) + " of " + std::to_string(stripes_.size());
        const auto path = stripes_[stripe]->path();
        const auto& known = path.empty() ? paths_[stripe] : path;
        return known.empty() ? text : text + ", " + known;
    }

    std::vector<std::unique_ptr<Link>> stripes_;
    std::vector<std::string> paths_;
    std::size_t block_;
    Cursor out_;
    Cursor in_;
};

std::unique_ptr<Link> make_striped_link(int peer, std::vector<std::unique_ptr<Link>> stripes,
                                        std::vector<std::string> paths, std::size_t block) {
    return std::make_unique<StripedLink>(peer, std::move(stripes), std::move(paths), block);
}

std::unique_ptr<Link> make_striped_link(int peer, std::vector<Fd> sockets,
                                        std::chrono::milliseconds silence) {
    if (sockets.empty()) throw UsageError("there is no socket for rank " + std::to_string(peer));
    if (sockets.size() == 1) return make_socket_link(peer, sockets[0].release(), silence);
    std::vector<std::unique_ptr<Link>> stripes;
    std::vector<std::string> paths;
    for (Fd& fd : sockets) {
        paths.push_back(Path::of(fd.get()).text());
        stripes.push_back(make_socket_link(peer, fd.release(), silence));
    }
    return make_striped_link(peer, std::move(stripes), std::move(paths));
}

}  // namespace phalanx
