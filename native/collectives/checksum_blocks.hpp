// The sum of whole blocks, in the ways that processors have for it; checksum.hpp has the whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace phalanx {

// Eight lanes: of each word of a block, the word itself and the product of the halves of the word
// xor a key that is another one for each block are added.
struct ChecksumLanes {
    static constexpr std::size_t kLanes = 8;
    using Words = std::array<std::uint64_t, kLanes>;

    Words products{};
    Words words{};
    // Random: the digits of no number that anybody sends, and both halves of each are odd.
    Words keys{0x2545F4914F6CDD1D, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB,
               0x8EBC6AF109C88C6F, 0x589965CD75374CC3, 0x1D8E4E27C47D124F, 0xEB44ACCBAB455D35};
};

constexpr std::size_t kChecksumBlock = sizeof(ChecksumLanes::Words);
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio, odd

// Adds so many blocks that begin there, aligned or not.
using AddBlocks = void (*)(ChecksumLanes& lanes, const std::byte* blocks, std::size_t count);

// Those that this processor can do: the fastest first, last the one that needs nothing of it.
std::span<const AddBlocks> ways_to_add_blocks();

}  // namespace phalanx
