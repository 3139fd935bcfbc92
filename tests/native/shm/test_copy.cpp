// Streaming copies copy the same bytes; the placement is told from times that are given.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "base/copy.hpp"
#include "transport/cache_distance.hpp"

using namespace phalanx;
using namespace std::chrono_literals;

TEST_CASE("a streaming copy copies what a cached one does, and nothing beside it") {
    constexpr std::size_t kRoom = 1024;
    std::vector<std::byte> source(kRoom);
    for (std::size_t i = 0; i < kRoom; ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
    for (const std::size_t to : {0U, 1U, 15U, 63U, 64U}) {
        for (const std::size_t from : {0U, 3U, 16U}) {
            for (const std::size_t size : {0U, 1U, 63U, 64U, 65U, 127U, 128U, 500U, 900U}) {
                std::vector<std::byte> cached(kRoom);
                std::vector<std::byte> streamed(kRoom);
                copy_cached(cached.data() + to, source.data() + from, size);
                copy_streaming(streamed.data() + to, source.data() + from, size);
                CHECK(cached == streamed);
            }
        }
    }
}

TEST_CASE("three slow reads in a row are far, one fast one is near again") {
    CacheDistance placement(false);
    const auto now = Clock::now();
    placement.saw(2us);
    placement.saw(2us);
    CHECK_FALSE(placement.is_far());
    placement.saw(200ns);
    placement.saw(2us);
    placement.saw(2us);
    CHECK_FALSE(placement.wants_streaming(now));
    placement.saw(2us);
    CHECK(placement.is_far());
    placement.saw(200ns);
    CHECK_FALSE(placement.is_far());
}

TEST_CASE("far, a write goes through the cache now and then, to see whether it still is") {
    CacheDistance placement(false);
    for (int i = 0; i < 3; ++i) placement.saw(2us);
    const auto begin = Clock::now();
    CHECK(placement.wants_streaming(begin));
    CHECK_FALSE(placement.wants_streaming(begin + 51ms));
    CHECK(placement.wants_streaming(begin + 52ms));
    CHECK(placement.wants_streaming(begin + 100ms));
    CHECK_FALSE(placement.wants_streaming(begin + 102ms));
}
