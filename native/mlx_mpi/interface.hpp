// The interface between the library that MLX loads as its MPI and the engine in phalanx._native.
#pragma once

#include <cstdint>

#include "collectives/operation/op.hpp"

namespace phalanx::mlx_mpi {

// A group as MLX's communicator; the engine owns it.
struct Communicator;

struct Functions {
    int (*rank)(Communicator& comm) noexcept;
    int (*size)(Communicator& comm) noexcept;
    // Runs an operation on the calling thread, which is MLX's stream. Returns false after a
    // failure: then `out` is invalid, and the error is raised on Python's main thread.
    bool (*run)(Communicator& comm, OpKind kind, Dtype dtype, std::uint64_t count, int peer,
                const void* x, void* out) noexcept;
    // Both are called with the GIL or without it. split() returns null after a failure.
    Communicator* (*split)(Communicator& comm, int color, int key) noexcept;
    void (*release)(Communicator& comm) noexcept;
};

// What `phalanx.adapters.mlx.connect` returns, in a capsule of this name.
struct MlxWorld {
    static constexpr const char* kCapsule = "phalanx.mlx_mpi.MlxWorld";
    const Functions* functions;
    Communicator* communicator;
};

}  // namespace phalanx::mlx_mpi
