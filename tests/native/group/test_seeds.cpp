// Every seed of the engine's fuzz target (tests/fuzz/targets/engine.cpp), without a fuzzer.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

TEST_CASE("every seed of the fuzzer passes") {
    int n_seeds = 0;
    for (const auto& entry : std::filesystem::directory_iterator(PHALANX_FUZZ_SEEDS)) {
        std::ifstream file(entry.path(), std::ios::binary);
        const std::vector<char> read(std::istreambuf_iterator<char>(file), {});
        const std::vector<std::uint8_t> data(read.begin(), read.end());
        CAPTURE(entry.path().string());
        CHECK(LLVMFuzzerTestOneInput(data.data(), data.size()) == 0);
        ++n_seeds;
    }
    CHECK(n_seeds > 0);
}
