// The thirteen functions and the objects of Open MPI that MLX resolves in its MPI library.
//
// MLX loads this library because MLX_MPI_LIBNAME names it. MPI_Init imports
// `phalanx.adapters.mlx` and gets the rank's group from it. MLX ignores the return codes of
// operations; the engine therefore raises their errors itself (interface.hpp).
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>
#include <bit>
#include <complex>
#include <cstdlib>
#include <cstring>

#include "mlx_mpi/interface.hpp"

namespace phalanx::mlx_mpi {
namespace {

constexpr int kSuccess = 0;
constexpr int kError = 16;  // MPI_ERR_OTHER of Open MPI
const void* const kInPlace = reinterpret_cast<void*>(1);

struct Datatype {
    Dtype dtype;
};

// A user's operation has a dtype of its own: the datatype beside it says only two bytes.
struct Reduction {
    OpKind kind = OpKind::kBarrier;
    Dtype dtype = Dtype::none;
};

using UserFunction = void(void* input, void* accumulator, int* count, void** datatype);

// The C interface of MPI has no context argument, so this state is global. The GIL guards it: MLX
// calls MPI_Init, MPI_Type_contiguous and MPI_Op_create only while it initialises.
struct State {
    MlxWorld world{};
    std::array<Datatype, 2> halves{Datatype{Dtype::float16}, Datatype{Dtype::bfloat16}};
    std::size_t n_halves = 0;
    std::array<Reduction, 16> reductions{};
    std::size_t n_reductions = 0;
    bool has_failed = false;   // the process ends with status 1
    bool has_checked = false;  // whether MLX takes this library
};
State state;

template <class T>
T applied(UserFunction& function, T accumulator, T input) {
    int count = 1;
    function(&input, &accumulator, &count, nullptr);
    return accumulator;
}

// Finds out what a user's operation does from its results on a few values. MLX has sums, maxima and
// minima of float16 and bfloat16, and maxima and minima of complex64.
Reduction identify(UserFunction& function) {
    using C = std::complex<float>;
    // float16 and bfloat16 read only the first two bytes, which are zero in both numbers.
    const C one(1.0F, 0.0F);
    const C two(2.0F, 0.0F);
    if (applied(function, one, two) == two && applied(function, two, one) == two) {
        return {OpKind::kAllMax, Dtype::complex64};
    }
    if (applied(function, one, two) == one && applied(function, two, one) == one) {
        return {OpKind::kAllMin, Dtype::complex64};
    }
    // 0x3F80 and 0x4000 are 1 and 2 as bfloat16, 1.875 and 2 as float16. Room for a function that
    // would write eight bytes.
    const auto half = [&](std::uint16_t accumulator, std::uint16_t input) {
        const std::uint64_t result =
            applied<std::uint64_t>(function, std::uint64_t{accumulator}, std::uint64_t{input});
        return static_cast<std::uint16_t>(result);
    };
    switch (half(0x3F80, 0x4000)) {
        case 0x4040:  // 3
            return {OpKind::kAllSum, Dtype::bfloat16};
        case 0x43C0:  // 3.875
            return {OpKind::kAllSum, Dtype::float16};
        // 0x7F00 is a large bfloat16 and a float16 that is not a number: comparisons with that are
        // false and keep the accumulator.
        case 0x4000:
            return {OpKind::kAllMax,
                    half(0x3C00, 0x7F00) == 0x7F00 ? Dtype::bfloat16 : Dtype::float16};
        case 0x3F80:
            return {OpKind::kAllMin,
                    half(0x7F00, 0x3C00) == 0x3C00 ? Dtype::bfloat16 : Dtype::float16};
        default:
            return {};
    }
}

// Raises the Python exception that is set, or will be, on the main thread at its next instruction.
int raise_later(void* error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(static_cast<PyObject*>(error))),
                    static_cast<PyObject*>(error));
    Py_DECREF(static_cast<PyObject*>(error));
    return -1;
}

// Ends the process with status 1 after Python has ended, with all that runs at an exit.
void end_with_failure() { std::exit(1); }

PyObject* fail_at_exit(PyObject* /*self*/, PyObject* /*none*/) {
    if (!state.has_failed && Py_AtExit(&end_with_failure) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "Python takes no more functions to call at its end");
        return nullptr;
    }
    state.has_failed = true;
    Py_RETURN_NONE;
}

PyObject* make_fail_at_exit() {
    static PyMethodDef method{"fail_at_exit", &fail_at_exit, METH_NOARGS,
                              "Have this process end with status 1."};
    return PyCFunction_New(&method, nullptr);
}

bool connect() {
    PyObject* const module = PyImport_ImportModule("phalanx.adapters.mlx");
    if (module == nullptr && PyErr_ExceptionMatches(PyExc_ModuleNotFoundError) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "mx.distributed has the ranks of phalanx launch only where phalanx can be "
                        "imported: install phalanx for this Python");
    }
    PyObject* const capsule =
        module == nullptr ? nullptr
                          : PyObject_CallMethod(module, "connect", "N", make_fail_at_exit());
    Py_XDECREF(module);
    if (capsule == nullptr) {
        PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        Py_XDECREF(type);
        Py_XDECREF(trace);
        if (error != nullptr && Py_AddPendingCall(&raise_later, error) != 0) Py_DECREF(error);
        return false;
    }
    if (capsule == Py_None) {  // a group of one rank
        Py_DECREF(capsule);
        return false;
    }
    // The capsule is kept for good: MLX keeps the world until the process ends.
    const auto* const world =
        static_cast<const MlxWorld*>(PyCapsule_GetPointer(capsule, MlxWorld::kCapsule));
    if (world == nullptr) {
        PyErr_Clear();
        Py_DECREF(capsule);
        return false;
    }
    state.world = *world;
    return true;
}

// Runs on the main thread after MLX has resolved, or refused, what it needs of this library.
int check_that_mlx_fits(void* /*none*/) {
    PyObject* const module = PyImport_ImportModule("phalanx.adapters.mlx");
    if (module == nullptr) {
        PyErr_Clear();  // MPI_Init says what to install
        return 0;
    }
    PyObject* const result = PyObject_CallMethod(module, "check_that_mlx_fits", nullptr);
    Py_DECREF(module);
    if (result == nullptr) return -1;
    Py_DECREF(result);
    return 0;
}

Communicator* communicator_of(void* handle);

bool run(void* comm, OpKind kind, Dtype dtype, int count, int peer, const void* x, void* out) {
    Communicator* const found = communicator_of(comm);
    if (found == nullptr || count < 0) return false;
    return state.world.functions->run(*found, kind, dtype, static_cast<std::uint64_t>(count), peer,
                                      x, out);
}

Dtype dtype_of(const void* datatype) { return static_cast<const Datatype*>(datatype)->dtype; }

}  // namespace
}  // namespace phalanx::mlx_mpi

using namespace phalanx;
using namespace phalanx::mlx_mpi;

#define PHALANX_EXPORT __attribute__((visibility("default")))
#define PHALANX_MPI extern "C" PHALANX_EXPORT

extern "C" {
PHALANX_EXPORT char ompi_mpi_comm_world[1]{};
PHALANX_EXPORT Reduction ompi_mpi_op_sum{OpKind::kAllSum};
PHALANX_EXPORT Reduction ompi_mpi_op_max{OpKind::kAllMax};
PHALANX_EXPORT Reduction ompi_mpi_op_min{OpKind::kAllMin};
PHALANX_EXPORT Datatype ompi_mpi_c_bool{Dtype::boolean};
PHALANX_EXPORT Datatype ompi_mpi_int8_t{Dtype::int8};
PHALANX_EXPORT Datatype ompi_mpi_uint8_t{Dtype::uint8};
PHALANX_EXPORT Datatype ompi_mpi_int16_t{Dtype::int16};
PHALANX_EXPORT Datatype ompi_mpi_uint16_t{Dtype::uint16};
PHALANX_EXPORT Datatype ompi_mpi_int32_t{Dtype::int32};
PHALANX_EXPORT Datatype ompi_mpi_uint32_t{Dtype::uint32};
PHALANX_EXPORT Datatype ompi_mpi_int64_t{Dtype::int64};
PHALANX_EXPORT Datatype ompi_mpi_uint64_t{Dtype::uint64};
PHALANX_EXPORT Datatype ompi_mpi_float{Dtype::float32};
PHALANX_EXPORT Datatype ompi_mpi_double{Dtype::float64};
PHALANX_EXPORT Datatype ompi_mpi_c_complex{Dtype::complex64};
}

namespace phalanx::mlx_mpi {
namespace {

Communicator* communicator_of(void* handle) {
    return handle == &ompi_mpi_comm_world ? state.world.communicator
                                          : static_cast<Communicator*>(handle);
}

}  // namespace
}  // namespace phalanx::mlx_mpi

// MLX calls this first. A version of MLX that then refuses the library calls nothing more, and
// trains on one rank without a word.
PHALANX_MPI int MPI_Get_library_version(char* text, int* length) {
    if (!state.has_checked) {
        state.has_checked = Py_AddPendingCall(&check_that_mlx_fits, nullptr) == 0;
    }
    constexpr char kVersion[] = "phalanx, with the binary interface of Open MPI 5";
    std::memcpy(text, kVersion, sizeof kVersion);
    *length = static_cast<int>(sizeof kVersion - 1);
    return kSuccess;
}

PHALANX_MPI int MPI_Init(int* /*argc*/, char*** /*argv*/) {
    if (state.world.communicator != nullptr) return kSuccess;
    const PyGILState_STATE gil = PyGILState_Ensure();
    const bool is_connected = connect();
    PyGILState_Release(gil);
    return is_connected ? kSuccess : kError;
}

// MLX calls this when its world is destroyed, at the end of the process. The group is closed by
// the owner of the world in Python.
PHALANX_MPI int MPI_Finalize() { return kSuccess; }

PHALANX_MPI int MPI_Comm_rank(void* comm, int* rank) {
    Communicator* const found = communicator_of(comm);
    if (found == nullptr) return kError;
    *rank = state.world.functions->rank(*found);
    return kSuccess;
}

PHALANX_MPI int MPI_Comm_size(void* comm, int* size) {
    Communicator* const found = communicator_of(comm);
    if (found == nullptr) return kError;
    *size = state.world.functions->size(*found);
    return kSuccess;
}

PHALANX_MPI int MPI_Comm_split(void* comm, int color, int key, void** result) {
    Communicator* const found = communicator_of(comm);
    if (found == nullptr) return kError;
    *result = state.world.functions->split(*found, color, key);
    return *result == nullptr ? kError : kSuccess;
}

PHALANX_MPI int MPI_Comm_free(void** comm) {
    if (*comm != nullptr && state.world.functions != nullptr) {
        state.world.functions->release(*static_cast<Communicator*>(*comm));
        *comm = nullptr;
    }
    return kSuccess;
}

PHALANX_MPI int MPI_Allreduce(const void* x, void* out, int count, void* datatype, void* op,
                              void* comm) {
    const auto& reduction = *static_cast<const Reduction*>(op);
    const Dtype dtype = reduction.dtype == Dtype::none ? dtype_of(datatype) : reduction.dtype;
    return run(comm, reduction.kind, dtype, count, 0, x == kInPlace ? out : x, out) ? kSuccess
                                                                                    : kError;
}

PHALANX_MPI int MPI_Allgather(const void* x, int count, void* datatype, void* out, int /*count*/,
                              void* /*datatype*/, void* comm) {
    return run(comm, OpKind::kAllGather, dtype_of(datatype), count, 0, x, out) ? kSuccess : kError;
}

PHALANX_MPI int MPI_Send(const void* x, int count, void* datatype, int peer, int /*tag*/,
                         void* comm) {
    return run(comm, OpKind::kSend, dtype_of(datatype), count, peer, x, nullptr) ? kSuccess
                                                                                 : kError;
}

PHALANX_MPI int MPI_Recv(void* out, int count, void* datatype, int peer, int /*tag*/, void* comm,
                         void* /*status*/) {
    return run(comm, OpKind::kRecv, dtype_of(datatype), count, peer, nullptr, out) ? kSuccess
                                                                                   : kError;
}

// MLX makes float16 and bfloat16 of two bytes each, in this order.
PHALANX_MPI int MPI_Type_contiguous(int count, void* old, void** result) {
    if (count != 2 || dtype_of(old) != Dtype::uint8 || state.n_halves == state.halves.size()) {
        return kError;
    }
    *result = &state.halves[state.n_halves++];
    return kSuccess;
}

PHALANX_MPI int MPI_Type_commit(void** /*datatype*/) { return kSuccess; }

// MLX ignores the result: an operation that is not known fails when it is used.
PHALANX_MPI int MPI_Op_create(UserFunction* function, int /*commutes*/, void** result) {
    if (state.n_reductions == state.reductions.size()) return kError;
    Reduction& reduction = state.reductions[state.n_reductions++];
    reduction = identify(*function);
    *result = &reduction;
    return reduction.dtype == Dtype::none ? kError : kSuccess;
}
