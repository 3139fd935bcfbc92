// Share memory between the ranks of one host: one region per slot. A rank writes only its own
// region and reads its peers' regions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "os/memory_map.hpp"

namespace phalanx {

// Concurrency: immutable after construction; the bytes in the regions have their own rules
// (collectives/on_host/shared_memory_team.hpp, transport/shm_link.hpp). Each region is divided into
// kChannels parts of equal size, so that a group and its splits, which may run at the same time,
// use different memory. A part has the memory of the collectives and then one queue half for each
// slot of the host: the bytes that its owner sends to the rank there, and the count of bytes taken
// from that rank.
class Arena {
  public:
    static constexpr int kChannels = 32;
    static constexpr std::size_t kHeaderBytes = 4096;
    // Holds a message of 64 KiB with its header and the queue's counters.
    static constexpr std::size_t kQueueBytes = std::size_t{68} << 10;
    // A channel has 4 MiB for two staged chunks of 1 MiB and two results, and queues to 64 slots.
    // Pages use no memory until they are touched.
    static constexpr std::size_t kDefaultBytes =
        kHeaderBytes + kChannels * ((std::size_t{4} << 20) + 64 * kQueueBytes);

    static void format(int fd, std::size_t nbytes);
    // Return the memory of a dead rank's region to the system, though its peers map the region. The
    // region stays usable. The rank's epoch must have been aborted: a peer that reads the region
    // now checks for the abort after its last read, and checks each counter before using it.
    static void give_back(int fd);

    Arena(std::span<const int> fds, int own);
    // Arenas for `slots` ranks that are threads of this process, at the same addresses, so that a
    // thread sanitizer can check the protocol.
    static std::vector<std::unique_ptr<Arena>> in_process(int slots, std::size_t nbytes);

    [[nodiscard]] int slots() const noexcept { return static_cast<int>(regions_.size()); }
    [[nodiscard]] int own() const noexcept { return own_; }
    [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }
    // Size of the collectives' part of a channel.
    [[nodiscard]] std::size_t channel_nbytes() const noexcept;
    [[nodiscard]] std::span<std::byte> own_channel(int channel) const;
    [[nodiscard]] std::span<const std::byte> channel(int slot, int channel) const;
    // Halves of the queue between two slots: the half that this rank writes, and the half that
    // `slot` writes. All queues take at most half of a channel: with many slots they are smaller.
    [[nodiscard]] std::size_t queue_nbytes() const noexcept;
    [[nodiscard]] std::span<std::byte> own_queue(int channel, int peer_slot) const;
    [[nodiscard]] std::span<const std::byte> queue_of(int slot, int channel) const;

  private:
    Arena() = default;
    [[nodiscard]] std::size_t stride() const noexcept;
    [[nodiscard]] std::byte* at(int slot, int channel) const;
    [[nodiscard]] std::byte* queue_at(int slot, int channel, int peer_slot) const;

    std::vector<std::shared_ptr<Mapping>> regions_;
    std::size_t nbytes_ = 0;  // size of the smallest region: the same on every rank
    int own_ = 0;
};

}  // namespace phalanx
