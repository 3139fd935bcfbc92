// Implement regions: their header and their division into channels.
#include "shm/arena.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kMagic = 0x31'61'6e'65'72'61'6c'70;  // "plarena1"
constexpr std::uint32_t kVersion = 2;
// Half of a channel's 192 KiB holds two header slots with inline payloads of 32 KiB
// (shared_memory_team.hpp).
constexpr std::size_t kLeastBytes =
    Arena::kHeaderBytes + Arena::kChannels * (std::size_t{192} << 10);
constexpr std::size_t kQueueAlign = 128;

struct ArenaHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t channels;
    std::uint64_t nbytes;
};

void write_header(std::byte* base, std::size_t nbytes) noexcept {
    const ArenaHeader header{kMagic, kVersion, Arena::kChannels, nbytes};
    std::memcpy(base, &header, sizeof header);
}

void check_size(std::size_t nbytes) {
    if (nbytes < kLeastBytes) {
        throw UsageError("an arena region has at least " + std::to_string(kLeastBytes) +
                         " bytes, not " + std::to_string(nbytes));
    }
}

}  // namespace

void Arena::format(int fd, std::size_t nbytes) {
    check_size(nbytes);
    grow_file(fd, nbytes);
    const Mapping mapping(fd, kHeaderBytes, Access::kReadWrite);
    write_header(mapping.data(), nbytes);
}

void Arena::give_back(int fd) {
    const std::size_t size = file_size(fd);
    check_size(size);
    punch_file(fd, kHeaderBytes, size);
}

Arena::Arena(std::span<const int> fds, int own) : own_(own) {
    if (own < 0 || static_cast<std::size_t>(own) >= fds.size()) {
        throw UsageError("slot " + std::to_string(own) + " is not one of the " +
                         std::to_string(fds.size()) + " regions");
    }
    for (std::size_t slot = 0; slot < fds.size(); ++slot) {
        const std::size_t size = file_size(fds[slot]);
        check_size(size);
        const bool is_own = slot == static_cast<std::size_t>(own);
        auto region =
            std::make_shared<Mapping>(fds[slot], size, is_own ? Access::kReadWrite : Access::kRead);
        ArenaHeader header{};
        std::memcpy(&header, region->data(), sizeof header);
        if (header.magic != kMagic || header.version != kVersion || header.channels != kChannels ||
            header.nbytes > size || header.nbytes < kLeastBytes) {
            throw UsageError("region " + std::to_string(slot) + " is not an arena region");
        }
        const auto nbytes = static_cast<std::size_t>(header.nbytes);
        nbytes_ = slot == 0 ? nbytes : std::min(nbytes_, nbytes);
        regions_.push_back(std::move(region));
    }
}

std::vector<std::unique_ptr<Arena>> Arena::in_process(int slots, std::size_t nbytes) {
    check_size(nbytes);
    std::vector<std::shared_ptr<Mapping>> regions;
    for (int slot = 0; slot < slots; ++slot) {
        regions.push_back(std::make_shared<Mapping>(Mapping::anonymous(nbytes)));
        write_header(regions.back()->data(), nbytes);
    }
    std::vector<std::unique_ptr<Arena>> arenas;
    for (int slot = 0; slot < slots; ++slot) {
        std::unique_ptr<Arena> arena(new Arena());
        arena->regions_ = regions;
        arena->nbytes_ = nbytes;
        arena->own_ = slot;
        arenas.push_back(std::move(arena));
    }
    return arenas;
}

std::size_t Arena::stride() const noexcept {
    return (nbytes_ - kHeaderBytes) / kChannels / 4096 * 4096;
}

std::size_t Arena::queue_nbytes() const noexcept {
    return std::min(kQueueBytes, stride() / 2 / regions_.size() / kQueueAlign * kQueueAlign);
}

std::size_t Arena::channel_nbytes() const noexcept {
    return (stride() - regions_.size() * queue_nbytes()) / 4096 * 4096;
}

std::byte* Arena::at(int slot, int channel) const {
    if (slot < 0 || slot >= slots() || channel < 0 || channel >= kChannels) {
        throw UsageError("no slot " + std::to_string(slot) + " or no channel " +
                         std::to_string(channel) + " in this arena");
    }
    return regions_[static_cast<std::size_t>(slot)]->data() + kHeaderBytes +
           static_cast<std::size_t>(channel) * stride();
}

std::byte* Arena::queue_at(int slot, int channel, int peer_slot) const {
    if (peer_slot < 0 || peer_slot >= slots()) {
        throw UsageError("no slot " + std::to_string(peer_slot) + " in this arena");
    }
    return at(slot, channel) + channel_nbytes() +
           static_cast<std::size_t>(peer_slot) * queue_nbytes();
}

std::span<std::byte> Arena::own_channel(int channel) const {
    return {at(own_, channel), channel_nbytes()};
}

std::span<const std::byte> Arena::channel(int slot, int channel) const {
    return {at(slot, channel), channel_nbytes()};
}

std::span<std::byte> Arena::own_queue(int channel, int peer_slot) const {
    return {queue_at(own_, channel, peer_slot), queue_nbytes()};
}

std::span<const std::byte> Arena::queue_of(int slot, int channel) const {
    return {queue_at(slot, channel, own_), queue_nbytes()};
}

}  // namespace phalanx
