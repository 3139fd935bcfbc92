// Functions that are compiled once for each kind of vectors and chosen when the engine is loaded.
#pragma once

// AVX2, and AVX-512 with its masks, which choose between elements in one instruction where AVX2
// needs a comparison and a blend. ifunc resolvers run before a sanitizer is ready, so clones are
// for plain builds only.
#if !defined(__x86_64__) || defined(PHALANX_SANITIZED) || defined(__APPLE__)  // Mach-O has no ifunc
#define PHALANX_CLONES
#elif defined(__clang__)
#define PHALANX_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define PHALANX_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
