// Define a link: a two-way stream of bytes to one peer. Algorithms see only this interface.
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
#include "os/descriptors.hpp"

namespace phalanx {

// Concurrency: a link belongs to the thread that holds its group's turn; other threads of the group
// may call only has_ended(), peek_notice() and descriptor() meanwhile.
//
// Abort notice: a rank that gives up an operation writes the reason as the last record of its
// stream and then shuts its direction down. The receiver keeps the tail of the bytes it read. Once
// the stream has ended, a well-formed record at the end of the tail is the reason. So ranks without
// a common page learn the true cause from the stream itself, even if it was cut within a message.
class Link {
  public:
    explicit Link(int peer) noexcept : peer_(peer) {}
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    virtual ~Link() = default;

    [[nodiscard]] int peer() const noexcept { return peer_; }
    using Parts = std::span<const std::span<const std::byte>>;
    static constexpr std::size_t kMaxParts = 3;
    // Number of bytes sent at once, 0 if the link is full. Throws PeerLost after a failure, and
    // then always the same error.
    std::size_t try_send(Parts parts);
    std::size_t try_send(std::span<const std::byte> bytes) { return try_send(Parts(&bytes, 1)); }
    // Number of bytes received at once into `bytes` and the rest into `more`, 0 if there are none.
    // Throws PeerLost at the end of the stream.
    std::size_t try_recv(std::span<std::byte> bytes, std::span<std::byte> more = {});
    // Set counters to which moved bytes are added; null: none.
    void count_in(std::atomic<std::uint64_t>* sent, std::atomic<std::uint64_t>* received) noexcept {
        sent_in_ = sent;
        received_in_ = received;
    }
    // Whether the peer has ended its stream; sent bytes may still be unread.
    [[nodiscard]] virtual bool has_ended() noexcept = 0;
    // Whether a try can succeed. Only links without a descriptor know this, because their waiters
    // poll; for the others a caller must try.
    [[nodiscard]] virtual bool can_send() noexcept { return true; }
    [[nodiscard]] virtual bool can_recv() noexcept { return true; }
    // Called after a long wait: throws PeerLost if the other end has acknowledged nothing for the
    // time of silence.
    void check_alive();
    // Descriptor for poll(), or -1 for a link in memory.
    [[nodiscard]] virtual int descriptor() const noexcept { return -1; }
    // Adds the descriptors to poll for `events` now; a negative one for a link in memory.
    virtual void add_polled(std::vector<pollfd>& polled, int events) const {
        polled.push_back({descriptor(), static_cast<short>(events), 0});
    }
    // "address to address" of each connection if there are several.
    [[nodiscard]] virtual std::vector<std::string> paths() const { return {}; }
    // "address on card to address" of a connection for an error; "" if unknown or several.
    [[nodiscard]] virtual std::string path() const { return ""; }
    // Marks the link broken because the peer sent invalid data; throws PeerLost.
    [[noreturn]] void mark_broken(const std::string& why, bool is_silent = false);

    // Sends the reason for giving up and ends this direction. Only the first call sends words.
    void send_abort_notice(std::uint64_t epoch, const AbortReason& reason) noexcept;
    // Reads and drops all incoming bytes; returns the peer's abort notice if its stream has ended.
    std::optional<AbortReason> drain_for_notice(std::uint64_t epoch) noexcept;
    // Peeks at the abort notice of a stream that has ended; bytes before it can still be received.
    // Clears `is_final` if another thread reads the link meanwhile, so that a later peek may find
    // some.
    [[nodiscard]] std::optional<AbortReason> peek_notice(std::uint64_t epoch,
                                                         bool& is_final) noexcept;
    [[nodiscard]] std::optional<AbortReason> peek_notice(std::uint64_t epoch) noexcept {
        bool is_final = true;
        return peek_notice(epoch, is_final);
    }
    // Ends this direction without an abort notice.
    void finish() noexcept;

  protected:
    static constexpr const char* kClosedThere = "the other end closed it";
    // A link may move less than it could: for instance only the first part.
    virtual std::size_t do_send(Parts parts) = 0;
    virtual std::size_t do_recv(std::span<std::byte> bytes, std::span<std::byte> more) = 0;
    // The first part that is not empty.
    static std::span<const std::byte> first_of(Parts parts) noexcept {
        while (parts.size() > 1 && parts.front().empty()) parts = parts.subspan(1);
        return parts.empty() ? std::span<const std::byte>() : parts.front();
    }
    virtual void do_finish() noexcept = 0;
    virtual void do_check_alive() {}
    // Peeks at the last bytes of a stream that has ended. kUnclear: try again later.
    enum class Peek : std::uint8_t { kFound, kNotThere, kUnclear };
    virtual Peek do_peek_tail(std::span<std::byte> /*bytes*/) noexcept { return Peek::kNotThere; }
    [[noreturn]] void lose(const std::string& why, bool is_silent = false) const {
        throw PeerLost(peer_, why, is_silent);
    }

  private:
    friend class StripedLink;  // consists of links, and calls their do_... functions

    struct AbortNotice {
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
    static std::uint64_t checksum(const AbortNotice& notice) noexcept;
    static std::optional<AbortReason> read(const AbortNotice& notice, std::uint64_t epoch) noexcept;
    void remember(std::span<const std::byte> bytes) noexcept;

    // fetch_add, because other links to the same rank use the counter too: 5 ns beside a system
    // call.
    static std::size_t count(std::atomic<std::uint64_t>* where, std::size_t moved) noexcept {
        if (where != nullptr && moved > 0) where->fetch_add(moved, std::memory_order_relaxed);
        return moved;
    }

    // Runs `body`. A failure in it marks this link broken, and the error names the link's
    // addresses.
    template <class Body>
    auto guarded(const Body& body) {
        if (!broken_.empty()) lose(broken_, was_silent_);
        try {
            return body();
        } catch (const PeerLost& error) {
            mark_broken(error.what(), error.is_silent);
        }
    }

    int peer_;
    std::atomic<std::uint64_t>* sent_in_ = nullptr;
    std::atomic<std::uint64_t>* received_in_ = nullptr;
    bool has_finished_ = false;
    std::string broken_;  // cause of the failure, or empty
    bool was_silent_ = false;
    std::size_t tail_size_ = 0;
    std::array<std::byte, sizeof(AbortNotice)> tail_{};
};

// Bytes that are summed and moved at once: they stay in the cache, and the abort word is checked
// often.
inline constexpr std::size_t kIoChunkBytes = std::size_t{256} << 10;

// Link over a connected stream socket; takes ownership of fd. A host that answers nothing for
// `silence`, also not the kernel's probes, counts as lost (a frozen process does not); 0: never.
std::unique_ptr<Link> make_socket_link(int peer, int fd, std::chrono::milliseconds silence = {});
// One stream over several connected sockets, in the same order at both ends; with one socket, the
// link above.
std::unique_ptr<Link> make_striped_link(int peer, std::vector<Fd> sockets,
                                        std::chrono::milliseconds silence = {});
// Bytes on one stripe before the next stripe's turn; both ends must use the same number.
inline constexpr std::size_t kStripeBlock = std::size_t{64} << 10;
std::unique_ptr<Link> make_striped_link(int peer, std::vector<std::unique_ptr<Link>> stripes,
                                        std::vector<std::string> paths = {},
                                        std::size_t block = kStripeBlock);

}  // namespace phalanx
