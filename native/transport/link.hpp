// A two-way stream of bytes to one peer. Algorithms see only this interface.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace phalanx {

// Concurrency: a link belongs to the thread whose turn it is in its group; only has_ended(),
// overhear() and descriptor() may be called by others of its group's threads meanwhile.
//
// Last words: a rank that gives an operation up writes why as the last record of its stream and
// then shuts its direction down. The receiver keeps the tail of what it read; once the stream has
// ended, a tail that ends with a well-formed record is the reason. So ranks that share no page
// learn the true cause in the stream itself, wherever in a message it was cut.
class Link {
  public:
    explicit Link(int peer) noexcept : peer_(peer) {}
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    virtual ~Link() = default;

    [[nodiscard]] int peer() const noexcept { return peer_; }
    // How many bytes were taken at once, 0 if the link is full. Throws PeerLost, and from then on
    // always the same.
    std::size_t try_send(std::span<const std::byte> bytes);
    // How many bytes came at once, 0 if there are none. Throws PeerLost at the end of the stream.
    std::size_t try_recv(std::span<std::byte> bytes);
    // Several pieces as one: what a link can take or give in one go.
    using Parts = std::span<const std::span<const std::byte>>;
    static constexpr std::size_t kMaxParts = 3;
    std::size_t try_send(Parts parts);
    std::size_t try_recv(std::span<std::byte> bytes, std::span<std::byte> more);
    // Where bytes are counted from now on, for whoever looks; null: nowhere.
    void count_in(std::atomic<std::uint64_t>* sent, std::atomic<std::uint64_t>* received) noexcept {
        sent_in_ = sent;
        received_in_ = received;
    }
    // The peer sends nothing any more; what it had sent may still be unread.
    [[nodiscard]] virtual bool has_ended() noexcept = 0;
    // Whether trying is of use. Only links without a descriptor, which one waits for by looking,
    // know it; the others must try.
    [[nodiscard]] virtual bool can_send() noexcept { return true; }
    [[nodiscard]] virtual bool can_recv() noexcept { return true; }
    // For who has waited long: throws PeerLost if the other end has not acknowledged anything for
    // the time of silence.
    void check_alive();
    // What poll() can wait on, or -1 for a link in memory.
    [[nodiscard]] virtual int descriptor() const noexcept { return -1; }
    // What this thread is to poll for `events` now: one that is negative for a link in memory.
    virtual void add_polled(std::vector<pollfd>& polled, int events) const {
        polled.push_back({descriptor(), static_cast<short>(events), 0});
    }
    // "address to address" of each connection, where there are several.
    [[nodiscard]] virtual std::vector<std::string> paths() const { return {}; }
    // "address on card to address" of a connection for an error; "" without, or of several.
    [[nodiscard]] virtual std::string path() const { return ""; }
    // Takes it that this link is of no use any more, for what was read from it: as if it had failed
    // by itself.
    [[noreturn]] void give_up(const std::string& why);

    // Says why this rank gives up and ends this direction. Only the first words count.
    void say_last_words(std::uint64_t epoch, const Reason& reason) noexcept;
    // Reads and drops what is still coming; the peer's last words once its stream has ended.
    std::optional<Reason> hear_last_words(std::uint64_t epoch) noexcept;
    // The last words of a stream that has ended; what was sent before them stays to be received.
    [[nodiscard]] std::optional<Reason> overhear(std::uint64_t epoch) noexcept;
    // Ends this direction without words.
    void finish() noexcept;

  protected:
    static constexpr const char* kClosedThere = "the other end closed it";
    virtual std::size_t do_send(std::span<const std::byte> bytes) = 0;
    virtual std::size_t do_recv(std::span<std::byte> bytes) = 0;
    // One after the other, where a link has no better way.
    virtual std::size_t do_send_parts(Parts parts);
    virtual std::size_t do_recv_both(std::span<std::byte> bytes, std::span<std::byte> more);
    virtual void do_finish() noexcept = 0;
    virtual void do_check_alive() {}
    // The last bytes of a stream that has ended, left where they are; false where that cannot be.
    virtual bool do_peek_tail(std::span<std::byte> /*bytes*/) noexcept { return false; }
    [[noreturn]] void lose(const std::string& why) const { throw PeerLost(peer_, why); }

  private:
    friend class StripedLink;  // is made of links, whose halves may fail one by one

    struct LastWords {
        std::array<char, 504> text;
        std::array<char, 200> site;
        std::int32_t kind;
        std::int32_t culprit;
        std::uint64_t length;
        std::uint64_t site_length;
        std::uint64_t epoch;
        std::uint64_t checksum;
        std::uint64_t magic;
    };
    static std::uint64_t checksum(const LastWords& words) noexcept;
    static std::optional<Reason> read(const LastWords& words, std::uint64_t epoch);
    void remember(std::span<const std::byte> bytes) noexcept;

    // Added to, as other links to the same rank count there, too: 5 ns beside a system call.
    static std::size_t count(std::atomic<std::uint64_t>* where, std::size_t moved) noexcept {
        if (where != nullptr && moved > 0) where->fetch_add(moved, std::memory_order_relaxed);
        return moved;
    }

    // Runs `body`; a failure in it is that of this link, from now on, and names its addresses.
    template <class Body>
    auto guarded(const Body& body) {
        if (!broken_.empty()) lose(broken_);
        try {
            return body();
        } catch (const PeerLost& error) {
            give_up(error.what());
        }
    }

    int peer_;
    std::atomic<std::uint64_t>* sent_in_ = nullptr;
    std::atomic<std::uint64_t>* received_in_ = nullptr;
    bool has_spoken_ = false;
    std::string broken_;  // why this link is of no use any more
    std::size_t tail_size_ = 0;
    std::array<std::byte, sizeof(LastWords)> tail_{};
};

// A connected stream socket; takes ownership of fd. A host that says nothing for `silence` (to the
// kernel's questions as well, so a frozen process does not count) is taken for lost; 0: never.
std::unique_ptr<Link> make_socket_link(int peer, int fd, std::chrono::milliseconds silence = {});
// One stream over several connected sockets, in the same order at both ends; over one, the link
// above. Takes ownership of all, also if it throws.
std::unique_ptr<Link> make_striped_link(int peer, std::span<const int> fds,
                                        std::chrono::milliseconds silence = {});
// Two ends agree on `block`, the bytes on one stripe before the next has its turn.
inline constexpr std::size_t kStripeBlock = std::size_t{64} << 10;
std::unique_ptr<Link> make_striped_link(int peer, std::vector<std::unique_ptr<Link>> stripes,
                                        std::vector<std::string> paths = {},
                                        std::size_t block = kStripeBlock);
// Makes a socket take that many bytes at once, whether or not the other end reads, as far as the
// system allows it (net.core.wmem_max).
void reserve_send_buffer(int fd, std::size_t nbytes) noexcept;

}  // namespace phalanx
