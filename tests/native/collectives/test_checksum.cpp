// The checksum of what crosses a wire: of the bytes alone, however they come,
// and never blind.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "collectives/kernels/checksum.hpp"

using namespace phalanx;

namespace {

std::vector<std::byte> noise(std::size_t size) {
    std::mt19937 random(7);
    std::vector<std::byte> bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

}  // namespace

TEST_CASE("a checksum is the same in whatever pieces the bytes come") {
    std::mt19937 random(3);
    for (const std::size_t size : {0, 1, 7, 63, 64, 65, 128, 1000}) {
        const auto bytes = noise(size);
        const auto whole = checksum_of(bytes);
        for (int round = 0; round < 20; ++round) {
            Checksum sum;
            std::size_t at = 0;
            while (at < size) {
                const auto piece = std::min<std::size_t>(1 + random() % 70, size - at);
                sum.add(std::span(bytes).subspan(at, piece));
                at += piece;
            }
            CHECK(sum.value() == whole);
        }
    }
}

TEST_CASE(
    "every changed bit, and every changed length of zeros, changes the "
    "checksum") {
    auto bytes = noise(200);
    std::set<std::uint64_t> seen{checksum_of(bytes)};
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        CHECK(seen.insert(checksum_of(bytes)).second);
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    for (std::size_t size = 0; size < 100; ++size) {
        CHECK(seen.insert(checksum_of(std::vector<std::byte>(size))).second);
    }
}

TEST_CASE(
    "the highest bits of two words of a lane do not cancel, nor does "
    "their order") {
    auto bytes = noise(192);
    const auto whole = checksum_of(bytes);
    bytes[7] ^= std::byte{0x80};
    bytes[71] ^= std::byte{0x80};
    CHECK(checksum_of(bytes) != whole);
    bytes[7] ^= std::byte{0x80};
    bytes[71] ^= std::byte{0x80};
    std::swap_ranges(bytes.begin(), bytes.begin() + 64, bytes.begin() + 64);
    CHECK(checksum_of(bytes) != whole);
}

TEST_CASE("a changed bit of the last lane does not cancel with itself") {
    // Chosen so that it changes the words' sum and the products' by the same.
    std::vector<std::uint64_t> words{0x57cf643dc868539d, 0xcde80d4d4af6fbb3, 0x55b0277043058a62,
                                     0x152f483740781ad4, 0x1e56ac2a07403562, 0x98526873502208da,
                                     0xee9f729ed8d751b1, 0xeb44accaf527c8f0};
    const auto whole = checksum_of(std::as_bytes(std::span(words)));
    words.back() ^= std::uint64_t{1} << 31;
    CHECK(checksum_of(std::as_bytes(std::span(words))) != whole);
}

TEST_CASE("pairs of changed bits never cancel, zeros among them") {
    for (auto bytes : {noise(128), std::vector<std::byte>(128)}) {
        const auto flip = [&](std::size_t bit) { bytes[bit / 8] ^= std::byte{1} << (bit % 8); };
        const auto whole = checksum_of(bytes);
        std::size_t n_missed = 0;
        for (std::size_t one = 0; one < 8 * bytes.size(); ++one) {
            flip(one);
            for (std::size_t other = 0; other < one; ++other) {
                flip(other);
                n_missed += checksum_of(bytes) == whole ? 1 : 0;
                flip(other);
            }
            flip(one);
        }
        CHECK(n_missed == 0);
    }
}

TEST_CASE("every way to add blocks adds the same, aligned or not") {
    const auto ways = checksum_implementations();
    const auto bytes = noise(40 * kChecksumBlock);
    for (const std::size_t offset : {0, 1, 8, 63}) {
        for (const std::size_t count : {0, 1, 2, 3, 4, 5, 38}) {
            std::set<std::array<ChecksumLanes::Words, 3>> seen;
            for (const AddBlocks add : ways) {
                ChecksumLanes lanes;
                add(lanes, bytes.data() + offset, count / 2);
                add(lanes, bytes.data() + offset + count / 2 * kChecksumBlock, count - count / 2);
                seen.insert({lanes.products, lanes.words, lanes.keys});
            }
            CHECK(seen.size() == 1);
        }
    }
}
