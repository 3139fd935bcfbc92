// The short way in, for what programs mostly pass: plain arrays of numpy. It looks at each argument
// once, with comparisons of pointers, and leaves everything else, and all that is to be refused, to
// the long way and its texts. Of collectives that comes back here with the memory it has found.
//
// pybind11's own functions look up each argument's converter; a call of eight bytes spent half of
// its time there and in the Python code around it (tests/bench/call_cost.py).
#include <array>

#include "binding/binding.hpp"
#include "collectives/kernels.hpp"

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
    PyObject* descr;  // numpy's own, which most arrays share; those that were unpickled do not
};

// Made as the module is, where no other thread can wait for it with the GIL in its hand (it imports
// numpy), and kept: no destructor runs after the interpreter's end.
struct Known {
    std::array<NamedKind, 9> kinds;
    std::vector<NamedDtype> dtypes;
};

bool is_message(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

NamedKind named(OpKind kind) {
    const bool keeps_shape = kind == OpKind::kAllSum || kind == OpKind::kAllMax ||
                             kind == OpKind::kAllMin || kind == OpKind::kBroadcast ||
                             is_message(kind);
    return {kind, keeps_shape, PyUnicode_InternFromString(name_of(kind).c_str())};
}

const Known& known() {
    static const Known* const it = [] {
        auto* made = new Known{
            {named(OpKind::kAllSum), named(OpKind::kAllMax), named(OpKind::kAllMin),
             named(OpKind::kBroadcast), named(OpKind::kAllGather), named(OpKind::kSumScatter),
             named(OpKind::kAllToAll), named(OpKind::kSend), named(OpKind::kRecv)},
            {}};
        for (const Dtype dtype : all_dtypes()) {
            if (dtype == Dtype::bfloat16) continue;  // ml_dtypes', not numpy's
            const std::string name(name_of(dtype));
            made->dtypes.push_back({dtype, py::dtype(name).release().ptr()});
        }
        return made;
    }();
    return *it;
}

const NamedKind* kind_of(PyObject* name) {
    for (const NamedKind& its : known().kinds) {
        if (its.name == name) return &its;
    }
    return nullptr;
}

// `as` says how to read the bytes where numpy has no name for it, "" where it has.
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

// Of a call, in Python's own numbers; false where the long way is to look at it.
bool timeout_of(PyObject* seconds, std::optional<Clock::duration>& timeout) {
    if (seconds == Py_None) return true;
    double number = -1;
    if (PyFloat_CheckExact(seconds)) {
        number = PyFloat_AS_DOUBLE(seconds);
    } else if (PyLong_CheckExact(seconds)) {
        number = PyLong_AsDouble(seconds);
        PyErr_Clear();  // too large: -1
    }
    if (!(number >= 0)) return false;  // nor of NaN
    timeout = to_duration(number);
    return true;
}

using Array = py::detail::PyArray_Proxy;
using Api = py::detail::npy_api;

// An array of numpy itself (a subclass may mean something else by its bytes), in one piece.
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

// Of the result; false where there is none.
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

// The rank that a call names, if it is to: whose array all get, or who is at the other end.
bool root_of(OpKind kind, PyObject* rank, const Group& group, int& root) {
    if (kind != OpKind::kBroadcast && !is_message(kind)) return true;
    const long number = PyLong_AsLong(rank);  // -1, too, of what is no number
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
    Py_INCREF(like.descr);  // taken over by the new array
    auto made = py::reinterpret_steal<py::object>(
        Api::get().PyArray_NewFromDescr_(Api::get().PyArray_Type_, like.descr, shape.ndim,
                                         shape.dims.data(), nullptr, nullptr, 0, nullptr));
    if (!made) throw py::error_already_set();
    return made;
}

// As Python has given them.
struct Arguments {
    PyObject *name, *engine, *x, *out, *root, *timeout, *dtype;
};

// The result, or null where the long way is to be gone.
py::object take(const Arguments& given) {
    const NamedKind* op = kind_of(given.name);
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
    // First, as it may run Python's code: who could change x there.
    if (!root_of(op->kind, given.root, group, call.root)) return {};

    Shape shape;
    if (!shape_of_result(*op, *x, group.size(), shape)) return {};
    if (!timeout_of(given.timeout, call.timeout)) return {};
    call.kind = op->kind;
    call.dtype = dtype;
    call.count = 1;
    // A copy: numpy frees its own where another thread gives the array a new shape meanwhile.
    std::array<std::uint64_t, kMostDims> dims;
    for (int axis = 0; axis < x->nd; ++axis) {
        dims[axis] = static_cast<std::uint64_t>(x->dimensions[axis]);
        call.count *= dims[axis];
    }
    call.shape = {dims.data(), static_cast<std::size_t>(x->nd)};
    call.x = reinterpret_cast<const std::byte*>(x->data);

    py::object out;
    bool is_to_spoil = false;
    if (op->kind == OpKind::kSend) {
        out = py::reinterpret_borrow<py::object>(given.x);  // itself, for the next to use
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
        // What is its own out the engine spoils, if it was touched; and what a message was to fill.
        is_to_spoil = is_apart && op->kind != OpKind::kRecv;
        out = py::reinterpret_borrow<py::object>(given.out);
    }
    try {
        run_call(group, call);
    } catch (...) {
        // Of a closed group nothing was begun, or its epoch is over and the array may be another's.
        if (is_to_spoil && !group.is_closed()) {
            poison(dtype, call.out, out_count(call.kind, call.count, group.size()));
        }
        throw;
    }
    return out;
}

constexpr Py_ssize_t kArguments = 7;

PyObject* short_way(PyObject* /*module*/, PyObject* const* args, Py_ssize_t n_args) {
    if (n_args != kArguments) {
        PyErr_Format(PyExc_TypeError, "short_way takes %zd arguments, not %zd", kArguments, n_args);
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

PyMethodDef short_ways[] = {
    {"short_way",
     // What the table's type has no word for, but the flag beside it says.
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&short_way)), METH_FASTCALL,
     "short_way($module, op, engine, x, out, root, timeout, dtype, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_short_way(py::module_& module) {
    known();
    if (PyModule_AddFunctions(module.ptr(), short_ways) != 0) throw py::error_already_set();
}

}  // namespace phalanx::binding
