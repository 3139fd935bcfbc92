// The fast path for plain numpy arrays, which most programs pass. It checks each argument once, by
// pointer comparison. Anything else, and anything invalid, goes to the slow path in Python, which
// has the error texts. For collectives the slow path calls the fast path with the memory it found.
//
// pybind11's own functions look up a converter for each argument; a call with eight bytes spent
// half of its time there and in the Python code around it (tests/bench/engine/call_cost.py).
#include <array>

#include "binding/binding.hpp"
#include "collectives/kernels/reduce.hpp"

namespace phalanx::binding {

namespace {

constexpr std::size_t kMostDims = 64;  // NPY_MAXDIMS of numpy 2

struct NamedKind {
    OpKind kind;
    bool keeps_shape;
    PyObject* name;  // interned, so mostly the same object as the caller's
};

struct NamedDtype {
    Dtype dtype;
    PyObject* descr;  // numpy's own, shared by most arrays, but not by unpickled ones
};

// Made at the first use: it imports numpy, which a supervisor does without. Never destroyed: no
// destructor runs after the interpreter has shut down.
struct Known {
    std::vector<NamedKind> kinds;
    std::vector<NamedDtype> dtypes;
};

NamedKind named(OpKind kind) {
    const bool keeps_shape = kind == OpKind::kAllSum || kind == OpKind::kAllMax ||
                             kind == OpKind::kAllMin || kind == OpKind::kBroadcast ||
                             is_message(kind);
    return {kind, keeps_shape, PyUnicode_InternFromString(name_of(kind).c_str())};
}

const Known& known() {
    // Not made by an initializer: other threads would hold the GIL while they wait for that.
    static const Known* it = nullptr;
    if (it != nullptr) return *it;
    auto* made = new Known;
    for (const OpKind kind : kOpKinds) {
        if (kind != OpKind::kSplit) made->kinds.push_back(named(kind));
    }
    for (const Dtype dtype : all_dtypes()) {
        if (dtype == Dtype::bfloat16) continue;  // from ml_dtypes, not numpy
        const std::string name(name_of(dtype));
        made->dtypes.push_back({dtype, py::dtype(name).release().ptr()});
    }
    if (it == nullptr) it = made;  // else another thread was first, while numpy ran Python code
    return *it;
}

const NamedKind* kind_of(PyObject* name) {
    for (const NamedKind& its : known().kinds) {
        if (its.name == name) return &its;
    }
    return nullptr;
}

// `as` names the dtype of the bytes if numpy has no name for it, else "".
Dtype dtype_read_as(PyObject* descr, std::string_view as) {
    for (const NamedDtype& its : known().dtypes) {
        if (its.descr != descr) continue;
        if (as.empty()) return its.dtype;
        const bool is_bits = its.dtype == Dtype::uint16 && as == name_of(Dtype::bfloat16);
        return is_bits ? Dtype::bfloat16 : Dtype::none;
    }
    if (!as.empty()) return Dtype::none;
    return dtype_of(py::reinterpret_borrow<py::dtype>(py::handle(descr)));
}

// Reads the timeout if it is a Python number; false: use the slow path.
bool timeout_of(PyObject* seconds, std::optional<Clock::duration>& timeout) {
    if (seconds == Py_None) return true;
    double number = -1;
    if (PyFloat_CheckExact(seconds)) {
        number = PyFloat_AS_DOUBLE(seconds);
    } else if (PyLong_CheckExact(seconds)) {
        number = PyLong_AsDouble(seconds);
        PyErr_Clear();  // too large: -1
    }
    if (!(number >= 0)) return false;  // also for NaN
    timeout = to_duration(number);
    return true;
}

using Array = py::detail::PyArray_Proxy;
using Api = py::detail::npy_api;

// Returns a contiguous array of numpy's own type (subclasses may interpret their bytes
// differently).
const Array* plain_array(PyObject* object, int flags) {
    if (Py_TYPE(object) != Api::get().PyArray_Type_) return nullptr;
    const Array* array = py::detail::array_proxy(object);
    const int needed = flags | Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_;
    return (array->flags & needed) == needed ? array : nullptr;
}

struct Shape {
    std::array<Py_intptr_t, kMostDims> dims;
    int ndim;
};

// Computes the shape of the result; false if there is none.
bool shape_of_result(const NamedKind& op, const Array& x, int size, Shape& shape) {
    if (x.nd > static_cast<int>(kMostDims)) return false;
    shape.ndim = x.nd;
    std::copy_n(x.dimensions, x.nd, shape.dims.begin());
    if (op.keeps_shape || size == 1) return true;
    if (op.kind == OpKind::kAllGather) {
        if (x.nd == 0) {
            shape.ndim = 1;
            shape.dims[0] = 1;
        }
        shape.dims[0] *= size;
        return true;
    }
    if (x.nd == 0 || x.dimensions[0] % size != 0) return false;
    if (op.kind == OpKind::kSumScatter) shape.dims[0] /= size;
    return true;
}

bool fits(const Array& out, const Array& x, std::string_view as, const Shape& shape) {
    const bool is_alike =
        out.descr == x.descr || dtype_read_as(out.descr, as) == dtype_read_as(x.descr, as);
    return is_alike && out.nd == shape.ndim &&
           std::equal(shape.dims.begin(), shape.dims.begin() + shape.ndim, out.dimensions);
}

// Reads the rank argument, if the operation has one: the root, or the other end of a message.
bool root_of(OpKind kind, PyObject* rank, const Group& group, int& root) {
    if (kind != OpKind::kBroadcast && !is_message(kind)) return true;
    const long number = PyLong_AsLong(rank);  // also -1 if `rank` is not a number
    if (PyErr_Occurred() != nullptr) {
        const bool is_none = PyErr_ExceptionMatches(PyExc_TypeError) != 0 ||
                             PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
        if (!is_none) throw py::error_already_set();
        PyErr_Clear();
    }
    if (number < 0 || number >= group.size()) return false;
    root = static_cast<int>(number);
    return kind == OpKind::kBroadcast || root != group.rank();
}

py::object new_array(const Array& like, Shape& shape) {
    Py_INCREF(like.descr);  // the new array steals a reference
    auto made = py::reinterpret_steal<py::object>(
        Api::get().PyArray_NewFromDescr_(Api::get().PyArray_Type_, like.descr, shape.ndim,
                                         shape.dims.data(), nullptr, nullptr, 0, nullptr));
    if (!made) throw py::error_already_set();
    return made;
}

// The arguments as Python passed them.
struct Arguments {
    PyObject *name, *engine, *x, *out, *root, *timeout, *dtype;
};

py::object barrier(const Arguments& given) {
    py::detail::make_caster<Group> caster;
    Call call;
    if (!caster.load(given.engine, false) || !timeout_of(given.timeout, call.timeout)) return {};
    run_call(py::detail::cast_op<Group&>(caster), call);
    return py::none();
}

// Returns the result, or null for the slow path.
py::object take(const Arguments& given) {
    const NamedKind* op = kind_of(given.name);
    if (op != nullptr && op->kind == OpKind::kBarrier) return barrier(given);
    if (op != nullptr && op->kind == OpKind::kSend && given.out != Py_None) return {};
    const Array* x = op == nullptr ? nullptr : plain_array(given.x, 0);
    if (x == nullptr || !PyUnicode_Check(given.dtype)) return {};
    Py_ssize_t length = 0;
    const char* as = PyUnicode_AsUTF8AndSize(given.dtype, &length);
    if (as == nullptr) throw py::error_already_set();
    const std::string_view read_as(as, static_cast<std::size_t>(length));
    const Dtype dtype = dtype_read_as(x->descr, read_as);
    py::detail::make_caster<Group> caster;
    if (dtype == Dtype::none || !caster.load(given.engine, false)) return {};
    auto& group = py::detail::cast_op<Group&>(caster);
    Call call;
    // First, because it may run Python code, which could change x.
    if (!root_of(op->kind, given.root, group, call.root)) return {};

    Shape shape;
    if (!shape_of_result(*op, *x, group.size(), shape)) return {};
    if (!timeout_of(given.timeout, call.timeout)) return {};
    call.kind = op->kind;
    call.dtype = dtype;
    call.count = 1;
    // A copy: numpy frees the original if another thread reshapes the array meanwhile.
    std::array<std::uint64_t, kMostDims> dims;
    for (int axis = 0; axis < x->nd; ++axis) {
        dims[axis] = static_cast<std::uint64_t>(x->dimensions[axis]);
        call.count *= dims[axis];
    }
    call.shape = {dims.data(), static_cast<std::size_t>(x->nd)};
    call.x = reinterpret_cast<const std::byte*>(x->data);

    py::object out;
    bool is_to_invalidate = false;
    if (op->kind == OpKind::kSend) {
        out = py::reinterpret_borrow<py::object>(given.x);  // send returns x itself
    } else if (given.out == Py_None) {
        out = new_array(*x, shape);
        call.out = reinterpret_cast<std::byte*>(py::detail::array_proxy(out.ptr())->data);
    } else {
        const Array* array = plain_array(given.out, Api::NPY_ARRAY_WRITEABLE_);
        if (array == nullptr || !fits(*array, *x, read_as, shape)) return {};
        call.out = reinterpret_cast<std::byte*>(array->data);
        const std::uint64_t width = size_of(dtype);
        const bool is_apart =
            call.x + call.count * width <= call.out ||
            call.out + out_count(call.kind, call.count, group.size()) * width <= call.x;
        if (!is_apart && !(op->keeps_shape && call.x == call.out)) return {};
        // The engine invalidates the output if it is x and was touched, and the output of recv.
        is_to_invalidate = is_apart && op->kind != OpKind::kRecv;
        out = py::reinterpret_borrow<py::object>(given.out);
    }
    try {
        run_call(group, call);
    } catch (...) {
        // Not for a closed group: nothing began, or the epoch is over and the array may be reused.
        if (is_to_invalidate && !group.is_closed()) {
            invalidate(dtype, call.out, out_count(call.kind, call.count, group.size()));
        }
        throw;
    }
    return out;
}

constexpr Py_ssize_t kArguments = 7;

PyObject* fast_path(PyObject* /*module*/, PyObject* const* args, Py_ssize_t n_args) {
    if (n_args != kArguments) {
        PyErr_Format(PyExc_TypeError, "fast_path takes %zd arguments, not %zd", kArguments, n_args);
        return nullptr;
    }
    try {
        py::object result = take({args[0], args[1], args[2], args[3], args[4], args[5], args[6]});
        if (!result) return Py_NewRef(Py_NotImplemented);
        return result.release().ptr();
    } catch (...) {
        set_python_error(std::current_exception());
        return nullptr;
    }
}

PyMethodDef fast_paths[] = {
    {"fast_path",
     // The type of the table entry cannot express METH_FASTCALL; the flag beside it does.
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&fast_path)), METH_FASTCALL,
     "fast_path($module, op, engine, x, out, root, timeout, dtype, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_fast_path(py::module_& module) {
    if (PyModule_AddFunctions(module.ptr(), fast_paths) != 0) throw py::error_already_set();
}

}  // namespace phalanx::binding
