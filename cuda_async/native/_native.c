/* What every launch does, compiled. It is optional: cuda_async runs without, by the Python that this stands in for.
 *
 * QuickLaunch is the quick function of ops/_written.py, which is its definition: same order, same conditions. It deals
 * with plain cases alone. Whatever else it sees (other types or numbers of arguments, another device or config, memory
 * that others know, a number out of range) it hands, before anything is noted, to the function in Python that
 * deals with it or says what is wrong. Enqueue is a call of a function of the driver with pointers that are kept.
 *
 * Objects are those of the Python classes. Their slots are read where they lie: the interpreter itself does so once a
 * line has run a few times, and a look by name would cost ten times as much. `learn` finds the places; an object's
 * class is checked before its slots are read.
 *
 * References. What another thread might drop while this lets go of the GIL (a lock that is waited for, the driver's
 * call, a function in Python) is held by `struct work`. Without a GIL other threads change slots at any time, so there
 * this is not built.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "this reads slots while it holds the GIL, which this Python does not have; it runs without"
#endif

#define MAX_ARGUMENTS 32
#define MAX_BLOCK_BYTES 512

/* -- where the slots lie */

enum { READ_CLASS, MUT_CLASS, TENSOR, BUFFER, USAGE, STREAM, CONTEXT, CLASSES };
static PyTypeObject *classes[CLASSES];

enum {
    READ_TENSOR, MUT_TENSOR, TENSOR_BUFFER, TENSOR_ADDRESS, BUFFER_PLAIN_ON, BUFFER_USAGE, USAGE_QUICK_READER,
    USAGE_READ_STREAM, USAGE_READ_NUMBER, USAGE_WRITE_STREAM, USAGE_WRITE_NUMBER, STREAM_NEXT, STREAM_DIRTY,
    STREAM_LAUNCH_KEY, STREAM_RETAINED, CONTEXT_DEVICE, CONTEXT_STREAM, SLOTS
};
static const struct { int class; const char *name; } slots[SLOTS] = {
    [READ_TENSOR] = {READ_CLASS, "tensor"},
    [MUT_TENSOR] = {MUT_CLASS, "tensor"},
    [TENSOR_BUFFER] = {TENSOR, "_buffer"},
    [TENSOR_ADDRESS] = {TENSOR, "_address"},
    [BUFFER_PLAIN_ON] = {BUFFER, "plain_on"},
    [BUFFER_USAGE] = {BUFFER, "usage"},
    [USAGE_QUICK_READER] = {USAGE, "quick_reader"},
    [USAGE_READ_STREAM] = {USAGE, "read_stream"},
    [USAGE_READ_NUMBER] = {USAGE, "read_number"},
    [USAGE_WRITE_STREAM] = {USAGE, "write_stream"},
    [USAGE_WRITE_NUMBER] = {USAGE, "write_number"},
    [STREAM_NEXT] = {STREAM, "_next"},
    [STREAM_DIRTY] = {STREAM, "_dirty"},
    [STREAM_LAUNCH_KEY] = {STREAM, "_launch_key"},
    [STREAM_RETAINED] = {STREAM, "_retained"},
    [CONTEXT_DEVICE] = {CONTEXT, "device"},
    [CONTEXT_STREAM] = {CONTEXT, "stream"},
};
static Py_ssize_t places[SLOTS];

static PyObject *checked_name, *lock_name, *acquire_name, *release_name, *bind_on_name, *driver_name, *failed_name,
    *launch_name, *zero;

static inline PyObject **at(PyObject *object, Py_ssize_t place) {
    return (PyObject **)((char *)object + place);
}

/* A borrowed reference, or NULL where the slot is empty. */
static inline PyObject *get(PyObject *object, int slot) {
    return *at(object, places[slot]);
}

static inline void put(PyObject *object, Py_ssize_t place, PyObject *value) {
    PyObject *before = *at(object, place);
    *at(object, place) = Py_NewRef(value);
    Py_XDECREF(before);
}

static inline void set(PyObject *object, int slot, PyObject *value) {
    put(object, places[slot], value);
}

/* Where a slot of a class lies, or -1 with an exception. */
static Py_ssize_t find_slot(PyTypeObject *class, const char *name) {
    PyObject *slot = PyObject_GetAttrString((PyObject *)class, name);
    if (slot == NULL) return -1;
    PyMemberDef *member = Py_IS_TYPE(slot, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)slot)->d_member : NULL;
    Py_ssize_t place = -1;
    if (member != NULL && member->type == T_OBJECT_EX)
        place = member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", class->tp_name, name);
    Py_DECREF(slot);
    return place;
}

static inline int is(PyObject *object, int class) {
    return object != NULL && PyObject_TypeCheck(object, classes[class]);
}

static PyObject *learn(PyObject *module, PyObject *args) {
    PyTypeObject *given[CLASSES];
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!:learn", &PyType_Type, &given[READ_CLASS], &PyType_Type,
                          &given[MUT_CLASS], &PyType_Type, &given[TENSOR], &PyType_Type, &given[BUFFER], &PyType_Type,
                          &given[USAGE], &PyType_Type, &given[STREAM], &PyType_Type, &given[CONTEXT]))
        return NULL;
    for (int i = 0; i < SLOTS; i++) {
        places[i] = find_slot(given[slots[i].class], slots[i].name);
        if (places[i] < 0) return NULL;
    }
    for (int i = 0; i < CLASSES; i++) {
        Py_INCREF(given[i]);
        Py_XDECREF(classes[i]);
        classes[i] = given[i];
    }
    Py_RETURN_NONE;
}

/* Whether that is the Tensor of the last `learn`: a package that is imported once more has classes of its own. */
static PyObject *knows(PyObject *module, PyObject *tensor) {
    return PyBool_FromLong(tensor == (PyObject *)classes[TENSOR]);
}

/* -- Enqueue */

typedef int (*entry_point)(void *, void *, void *, void *);

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    entry_point entry;
    void *config, *function, *parameters;
    PyObject *kept;
} Enqueue;

static int enqueue(Enqueue *self) {
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = self->entry(self->config, self->function, self->parameters, NULL);
    Py_END_ALLOW_THREADS
    return result;
}

static PyObject *enqueue_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    if (PyVectorcall_NARGS(count) != 0 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a launch that is bound takes no arguments");
        return NULL;
    }
    return PyLong_FromLong(enqueue((Enqueue *)self));
}

static PyObject *enqueue_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    unsigned long long entry, config, function, parameters;
    PyObject *kept;
    if (!PyArg_ParseTuple(args, "KKKKO:Enqueue", &entry, &config, &function, &parameters, &kept)) return NULL;
    Enqueue *self = (Enqueue *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = enqueue_call;
    self->entry = (entry_point)(uintptr_t)entry;
    self->config = (void *)(uintptr_t)config;
    self->function = (void *)(uintptr_t)function;
    self->parameters = (void *)(uintptr_t)parameters;
    self->kept = Py_NewRef(kept);
    return (PyObject *)self;
}

static int enqueue_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Enqueue *)self)->kept);
    return 0;
}

static int enqueue_clear(PyObject *self) {
    Py_CLEAR(((Enqueue *)self)->kept);
    return 0;
}

static void enqueue_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    enqueue_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject EnqueueType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cuda_async.native._native.Enqueue",
    .tp_doc = "Enqueue(entry, config, function, parameters, kept)\n--\n\n"
              "Calls `entry(config, function, parameters, NULL)`, all addresses, while other threads run; the int that it "
              "answers.\n`kept` is kept alive.",
    .tp_basicsize = sizeof(Enqueue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = enqueue_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Enqueue, call),
    .tp_traverse = enqueue_traverse,
    .tp_clear = enqueue_clear,
    .tp_dealloc = enqueue_dealloc,
};

/* -- QuickLaunch */

enum { READS, WRITES, INTEGER, FLOAT }; /* `code` of a step; the first two are tensors */

typedef struct {
    PyTypeObject *type; /* of the argument, exactly; NULL in a bound launch */
    PyObject *buffer;   /* in a bound launch, NULL otherwise */
    int code, size, offset;
    int64_t low;
    uint64_t high;  /* of an integer; not below 0 */
    double largest; /* finite float */
} Step;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *loaded, *device, *launch_anew, *launch_with_care, *order_read, *order_write;
    PyObject *outputs, *launches, *bind_on; /* of a bound launch alone, NULL otherwise; its buffers are in its steps */
    char *block;                            /* kept by `loaded` */
    Py_ssize_t block_bytes, count;
    Step *steps;
} QuickLaunch;

struct work {
    PyObject *stream;                 /* owned */
    PyObject *outputs[MAX_ARGUMENTS]; /* owned */
    PyObject *buffers[MAX_ARGUMENTS]; /* owned; NULL where the argument is no tensor */
    Py_ssize_t taken;                 /* of both */
    char values[MAX_BLOCK_BYTES];
};

typedef enum { FAILED, DONE, ANEW, WITH_CARE } Outcome;

static Outcome pack_number(const Step *step, PyObject *value, char *place) {
    if (step->code == INTEGER) {
        int overflow;
        int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow > 0 && step->high > INT64_MAX) { /* the upper half of 64 bits */
            uint64_t large = PyLong_AsUnsignedLongLong(value);
            if (large == UINT64_MAX && PyErr_Occurred()) {
                PyErr_Clear();
                return WITH_CARE;
            }
            memcpy(place, &large, 8);
            return DONE;
        }
        if (overflow || number < step->low || (number > 0 && (uint64_t)number > step->high)) return WITH_CARE;
        memcpy(place, &number, step->size); /* little-endian, as every host of the driver is */
        return DONE;
    }
    double number = PyFloat_AS_DOUBLE(value);
    if (Py_IS_FINITE(number) && !(-step->largest <= number && number <= step->largest)) return WITH_CARE;
    int result = step->size == 8   ? PyFloat_Pack8(number, place, 1)
                 : step->size == 4 ? PyFloat_Pack4(number, place, 1)
                                   : PyFloat_Pack2(number, place, 1);
    if (result < 0) {
        PyErr_Clear();
        return WITH_CARE;
    }
    return DONE;
}

/* Checks what needs no lock, and packs the values. */
static Outcome take_apart(QuickLaunch *self, PyObject *args, PyObject *ctx, PyObject *config, PyObject *checked,
                          struct work *work) {
    if (!PyTuple_CheckExact(checked) || PyTuple_GET_SIZE(checked) != 2 || !PyDict_CheckExact(PyTuple_GET_ITEM(checked, 1)))
        return ANEW;
    PyObject *last = PyTuple_GET_ITEM(checked, 0);
    if (config != last) {
        int same = PyObject_RichCompareBool(config, last, Py_EQ);
        if (same < 0) return FAILED;
        if (!same) return ANEW;
    }
    if (!is(ctx, CONTEXT) || get(ctx, CONTEXT_DEVICE) != self->device || !is(get(ctx, CONTEXT_STREAM), STREAM) ||
        !PyTuple_CheckExact(args) || PyTuple_GET_SIZE(args) != self->count)
        return ANEW;
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(args, i), self->steps[i].type)) return ANEW;

    work->stream = Py_NewRef(get(ctx, CONTEXT_STREAM));
    memset(work->values, 0, self->block_bytes);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Step *step = &self->steps[i];
        PyObject *value = PyTuple_GET_ITEM(args, i);
        char *place = work->values + step->offset;
        work->outputs[i] = work->buffers[i] = NULL;
        work->taken = i + 1;
        if (step->code > WRITES) {
            Outcome outcome = pack_number(step, value, place);
            if (outcome != DONE) return outcome;
        } else {
            value = get(value, step->code == READS ? READ_TENSOR : MUT_TENSOR);
            if (value == NULL || !Py_IS_TYPE(value, classes[TENSOR])) return WITH_CARE;
            PyObject *buffer = get(value, TENSOR_BUFFER), *address = get(value, TENSOR_ADDRESS);
            if (!is(buffer, BUFFER) || address == NULL || !PyLong_CheckExact(address)) return WITH_CARE;
            work->buffers[i] = Py_NewRef(buffer);
            uint64_t number = PyLong_AsUnsignedLongLong(address);
            if (number == UINT64_MAX && PyErr_Occurred()) {
                PyErr_Clear();
                return WITH_CARE;
            }
            memcpy(place, &number, 8);
        }
        work->outputs[i] = Py_NewRef(value);
    }
    return DONE;
}

/* Filled at once: the garbage collector shows tuples to whoever asks. */
static PyObject *tuple_of(PyObject *const *items, Py_ssize_t count) {
    PyObject *made = PyTuple_New(count);
    if (made != NULL)
        for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(made, i, Py_NewRef(items[i]));
    return made;
}

/* Lock held: whether all memory is plain, none is written and used once more, and the stream is open. */
static int is_plain(QuickLaunch *self, const struct work *work) {
    for (Py_ssize_t i = 0; i < self->count; i++) {
        PyObject *buffer = work->buffers[i];
        if (buffer == NULL) continue;
        PyObject *usage = get(buffer, BUFFER_USAGE);
        if (get(buffer, BUFFER_PLAIN_ON) != self->device || usage == NULL || !Py_IS_TYPE(usage, classes[USAGE]))
            return 0;
        for (Py_ssize_t j = 0; j < i; j++)
            if (work->buffers[j] == buffer && (self->steps[i].code == WRITES || self->steps[j].code == WRITES)) return 0;
    }
    PyObject *retained = get(work->stream, STREAM_RETAINED);
    return get(work->stream, STREAM_LAUNCH_KEY) != NULL && retained != NULL && PyList_CheckExact(retained) &&
           get(work->stream, STREAM_NEXT) != NULL && get(work->stream, STREAM_DIRTY) != NULL;
}

/* Lock held: `order_uses`, with the case of one stream written out. */
static int order(QuickLaunch *self, struct work *work) {
    PyObject *stream = work->stream;
    PyObject *number = Py_NewRef(get(stream, STREAM_NEXT));
    int result = 0;
    for (int code = READS; code <= WRITES && result == 0; code++) {
        for (Py_ssize_t i = 0; i < self->count && result == 0; i++) {
            PyObject *buffer = work->buffers[i];
            if (buffer == NULL || self->steps[i].code != code) continue;
            PyObject *usage = get(buffer, BUFFER_USAGE);
            /* A write clears quick_reader, so a read noted on this stream has waited for the last write. */
            if (code == READS && get(usage, USAGE_QUICK_READER) == stream)
                set(usage, USAGE_READ_NUMBER, number);
            else if (code == WRITES && get(usage, USAGE_WRITE_STREAM) == stream &&
                     get(usage, USAGE_READ_STREAM) == Py_None)
                set(usage, USAGE_WRITE_NUMBER, number);
            else {
                PyObject *order_it = code == READS ? self->order_read : self->order_write;
                PyObject *none = PyObject_CallFunctionObjArgs(order_it, stream, buffer, NULL);
                if (none == NULL) result = -1;
                Py_XDECREF(none);
            }
        }
    }
    Py_DECREF(number);
    return result;
}

/* Lock held: what the driver answered, false for success; NULL with an exception. */
static PyObject *start(QuickLaunch *self, PyObject *stream, PyObject *checked) {
    PyObject *key = get(stream, STREAM_LAUNCH_KEY); /* orderings run Python: it may be gone by now */
    PyObject *launches = self->launches != NULL ? self->launches : PyTuple_GET_ITEM(checked, 1);
    PyObject *bound = key == NULL ? NULL : PyDict_GetItemWithError(launches, key);
    if (bound != NULL)
        Py_INCREF(bound);
    else if (PyErr_Occurred())
        return NULL;
    else if (self->bind_on != NULL)
        bound = PyObject_CallOneArg(self->bind_on, stream);
    else
        bound = PyObject_CallMethodObjArgs(self->loaded, bind_on_name, stream, checked, NULL);
    if (bound == NULL) return NULL;
    PyObject *answer =
        Py_IS_TYPE(bound, &EnqueueType) ? PyLong_FromLong(enqueue((Enqueue *)bound)) : PyObject_CallNoArgs(bound);
    Py_DECREF(bound);
    return answer;
}

/* Lock held: raise what the driver answered. */
static void refuse(QuickLaunch *self, PyObject *answer) {
    PyObject *driver = PyObject_GetAttr(self->loaded, driver_name);
    PyObject *never = driver == NULL ? NULL : PyObject_CallMethodObjArgs(driver, failed_name, answer, NULL);
    if (never != NULL) PyErr_Format(PyExc_SystemError, "launch_failed(%R) raised nothing", answer);
    Py_XDECREF(never);
    Py_XDECREF(driver);
}

/* Lock held. */
static Outcome launch(QuickLaunch *self, PyObject *checked, struct work *work) {
    if (!is_plain(self, work)) return WITH_CARE;
    PyObject *stream = work->stream;
    if (self->block_bytes != 0) memcpy(self->block, work->values, self->block_bytes);
    if (order(self, work) < 0) return FAILED;
    PyObject *retained = get(stream, STREAM_RETAINED);
    if (retained == NULL || !PyList_CheckExact(retained)) {
        PyErr_SetString(PyExc_SystemError, "the stream was closed while its lock was held");
        return FAILED;
    }
    int was_dirty = get(stream, STREAM_DIRTY) == Py_True;
    set(stream, STREAM_DIRTY, Py_True); /* both at once, as an interrupt may come behind the driver's call */
    if (PyList_Append(retained, self->loaded) < 0) return FAILED;
    Py_INCREF(retained);
    PyObject *answer = start(self, stream, checked);
    int failed = answer == NULL ? -1 : PyObject_IsTrue(answer);
    if (failed > 0) {
        Py_ssize_t size = PyList_GET_SIZE(retained);
        set(stream, STREAM_DIRTY, was_dirty ? Py_True : Py_False);
        if (PyList_SetSlice(retained, size - 1, size, NULL) == 0) refuse(self, answer);
    }
    Py_XDECREF(answer);
    Py_DECREF(retained);
    return failed != 0 ? FAILED : DONE;
}

static Outcome launch_under_lock(QuickLaunch *self, PyObject *checked, struct work *work) {
    PyObject *lock = PyObject_GetAttr(self->device, lock_name);
    if (lock == NULL) return FAILED;
    PyObject *taken = PyObject_CallMethodNoArgs(lock, acquire_name);
    if (taken == NULL) {
        Py_DECREF(lock);
        return FAILED;
    }
    Py_DECREF(taken);
    Outcome outcome = launch(self, checked, work);
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *none = PyObject_CallMethodNoArgs(lock, release_name);
    Py_DECREF(lock);
    if (none == NULL) outcome = FAILED;
    Py_XDECREF(none);
    if (type != NULL) PyErr_Restore(type, error, traceback);
    return outcome;
}

static PyObject *check_call(size_t given, PyObject *names) {
    if (PyVectorcall_NARGS(given) == 3 && (names == NULL || PyTuple_GET_SIZE(names) == 0)) return Py_None;
    PyErr_SetString(PyExc_TypeError, "a launch takes (args, ctx, config)");
    return NULL;
}

static PyObject *quick_call(PyObject *callable, PyObject *const *argv, size_t given, PyObject *names) {
    QuickLaunch *self = (QuickLaunch *)callable;
    if (check_call(given, names) == NULL) return NULL;
    PyObject *args = argv[0], *ctx = argv[1], *config = argv[2];
    PyObject *checked = PyObject_GetAttr(self->loaded, checked_name);
    if (checked == NULL) return NULL;
    struct work work;
    work.stream = NULL;
    work.taken = 0;
    Outcome outcome = take_apart(self, args, ctx, config, checked, &work);
    if (outcome == DONE) outcome = launch_under_lock(self, checked, &work);
    PyObject *result = NULL;
    if (outcome == DONE)
        result = tuple_of(work.outputs, self->count);
    else if (outcome == ANEW)
        result = PyObject_CallFunctionObjArgs(self->launch_anew, args, ctx, config, NULL);
    else if (outcome == WITH_CARE)
        result = PyObject_CallFunctionObjArgs(self->launch_with_care, args, ctx, checked, NULL);
    for (Py_ssize_t i = 0; i < work.taken; i++) {
        Py_XDECREF(work.buffers[i]);
        Py_XDECREF(work.outputs[i]);
    }
    Py_XDECREF(work.stream);
    Py_DECREF(checked);
    return result;
}

static PyObject *bound_call(PyObject *callable, PyObject *const *argv, size_t given, PyObject *names) {
    QuickLaunch *self = (QuickLaunch *)callable;
    if (check_call(given, names) == NULL) return NULL;
    PyObject *ctx = argv[1];
    Outcome outcome = WITH_CARE;
    if (is(ctx, CONTEXT) && get(ctx, CONTEXT_DEVICE) == self->device && is(get(ctx, CONTEXT_STREAM), STREAM)) {
        struct work work;
        work.stream = Py_NewRef(get(ctx, CONTEXT_STREAM));
        for (Py_ssize_t i = 0; i < self->count; i++) work.buffers[i] = self->steps[i].buffer; /* kept by `self` */
        outcome = launch_under_lock(self, NULL, &work);
        Py_DECREF(work.stream);
    }
    if (outcome == DONE) return Py_NewRef(self->outputs);
    return outcome == FAILED ? NULL : PyObject_CallFunctionObjArgs(self->launch_with_care, argv[0], ctx, argv[2], NULL);
}

static int quick_traverse(PyObject *object, visitproc visit, void *arg) {
    QuickLaunch *self = (QuickLaunch *)object;
    Py_VISIT(self->loaded);
    Py_VISIT(self->device);
    Py_VISIT(self->launch_anew);
    Py_VISIT(self->launch_with_care);
    Py_VISIT(self->order_read);
    Py_VISIT(self->order_write);
    Py_VISIT(self->outputs);
    Py_VISIT(self->launches);
    Py_VISIT(self->bind_on);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->steps[i].type);
        Py_VISIT(self->steps[i].buffer);
    }
    return 0;
}

/* What can be part of a cycle. What is left answers with an error, should anything still call it. */
static int quick_clear(PyObject *object) {
    QuickLaunch *self = (QuickLaunch *)object;
    PyObject **held[] = {&self->loaded, &self->device, &self->launch_anew, &self->launch_with_care};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        PyObject *before = *held[i];
        *held[i] = Py_NewRef(Py_None);
        Py_XDECREF(before);
    }
    return 0;
}

static void quick_dealloc(PyObject *object) {
    QuickLaunch *self = (QuickLaunch *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->loaded);
    Py_XDECREF(self->device);
    Py_XDECREF(self->launch_anew);
    Py_XDECREF(self->launch_with_care);
    Py_XDECREF(self->order_read);
    Py_XDECREF(self->order_write);
    Py_XDECREF(self->outputs);
    Py_XDECREF(self->launches);
    Py_XDECREF(self->bind_on);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_XDECREF(self->steps[i].type);
        Py_XDECREF(self->steps[i].buffer);
    }
    PyMem_Free(self->steps);
    Py_TYPE(object)->tp_free(object);
}

static int read_step(PyObject *given, Step *step) {
    long long low;
    unsigned long long high;
    if (!PyArg_ParseTuple(given, "O!iiiLKd:step", &PyType_Type, &step->type, &step->code, &step->size, &step->offset,
                          &low, &high, &step->largest)) {
        step->type = NULL;
        return -1;
    }
    Py_INCREF(step->type);
    step->low = low;
    step->high = high;
    int n = step->size;
    int fits = n == 8 || n == 4 || n == 2 || (n == 1 && step->code == INTEGER);
    int is_tensor = step->code == READS || step->code == WRITES;
    if (step->code < READS || step->code > FLOAT || !fits || (is_tensor && n != 8) ||
        (is_tensor && step->type != classes[step->code == READS ? READ_CLASS : MUT_CLASS]) ||
        (step->code == INTEGER && !PyType_IsSubtype(step->type, &PyLong_Type)) ||
        (step->code == FLOAT && !PyType_IsSubtype(step->type, &PyFloat_Type)) || step->offset < 0 ||
        step->offset > MAX_BLOCK_BYTES - n) {
        PyErr_SetString(PyExc_ValueError, "a step that this cannot do");
        return -1;
    }
    return 0;
}

static PyObject *quick_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *loaded, *device, *launch_anew, *launch_with_care, *order_read, *order_write, *steps;
    Py_buffer block;
    if (!PyArg_ParseTuple(args, "OOOOOOw*O!:QuickLaunch", &loaded, &device, &launch_anew, &launch_with_care,
                          &order_read, &order_write, &block, &PyTuple_Type, &steps))
        return NULL;
    char *bytes = block.buf;
    Py_ssize_t size = block.len, count = PyTuple_GET_SIZE(steps);
    PyBuffer_Release(&block);
    if (classes[TENSOR] == NULL || count > MAX_ARGUMENTS || size > MAX_BLOCK_BYTES) {
        PyErr_SetString(PyExc_ValueError, "too many arguments for this, or learn() was not called");
        return NULL;
    }
    QuickLaunch *self = (QuickLaunch *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = quick_call;
    self->loaded = Py_NewRef(loaded);
    self->device = Py_NewRef(device);
    self->launch_anew = Py_NewRef(launch_anew);
    self->launch_with_care = Py_NewRef(launch_with_care);
    self->order_read = Py_NewRef(order_read);
    self->order_write = Py_NewRef(order_write);
    self->block = bytes;
    self->block_bytes = size;
    self->steps = PyMem_Calloc(count ? count : 1, sizeof(Step));
    if (self->steps == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        self->count = i + 1;
        if (read_step(PyTuple_GET_ITEM(steps, i), &self->steps[i]) < 0) {
            Py_DECREF(self);
            return NULL;
        }
        if (self->steps[i].offset + self->steps[i].size > size) {
            PyErr_SetString(PyExc_ValueError, "a step outside of the block");
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static PyTypeObject QuickLaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cuda_async.native._native.QuickLaunch",
    .tp_doc = "QuickLaunch(loaded, device, launch_anew, launch_with_care, order_read, order_write, block, steps)\n--\n\n"
              "(args, ctx, config) -> outputs: the quick launch of a loaded function. `block` is the memory that its\n"
              "arguments are packed in, kept by `loaded`; a step is (type, code, size, offset, low, high, largest).",
    .tp_basicsize = sizeof(QuickLaunch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = quick_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(QuickLaunch, call),
    .tp_traverse = quick_traverse,
    .tp_clear = quick_clear,
    .tp_dealloc = quick_dealloc,
};

static PyObject *bound_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *loaded, *device, *launch_with_care, *order_read, *order_write, *outputs, *launches, *bind_on, *reads, *writes;
    if (!PyArg_ParseTuple(args, "OOOOOOO!OO!O!:QuickBoundLaunch", &loaded, &device, &launch_with_care, &order_read,
                          &order_write, &outputs, &PyDict_Type, &launches, &bind_on, &PyTuple_Type, &reads,
                          &PyTuple_Type, &writes))
        return NULL;
    Py_ssize_t read_count = PyTuple_GET_SIZE(reads), count = read_count + PyTuple_GET_SIZE(writes);
    if (classes[TENSOR] == NULL || count > MAX_ARGUMENTS) {
        PyErr_SetString(PyExc_ValueError, "too many operands for this, or learn() was not called");
        return NULL;
    }
    QuickLaunch *self = (QuickLaunch *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = bound_call;
    self->loaded = Py_NewRef(loaded);
    self->device = Py_NewRef(device);
    self->launch_with_care = Py_NewRef(launch_with_care);
    self->order_read = Py_NewRef(order_read);
    self->order_write = Py_NewRef(order_write);
    self->outputs = Py_NewRef(outputs);
    self->launches = Py_NewRef(launches);
    self->bind_on = Py_NewRef(bind_on);
    self->steps = PyMem_Calloc(count ? count : 1, sizeof(Step));
    if (self->steps == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *buffer = i < read_count ? PyTuple_GET_ITEM(reads, i) : PyTuple_GET_ITEM(writes, i - read_count);
        if (!is(buffer, BUFFER)) {
            Py_DECREF(self);
            PyErr_SetString(PyExc_TypeError, "expected buffers");
            return NULL;
        }
        self->steps[i].buffer = Py_NewRef(buffer);
        self->steps[i].code = i < read_count ? READS : WRITES;
        self->count = i + 1;
    }
    return (PyObject *)self;
}

static PyTypeObject QuickBoundLaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cuda_async.native._native.QuickBoundLaunch",
    .tp_doc = "QuickBoundLaunch(loaded, device, launch_with_care, order_read, order_write, outputs, launches, bind_on, "
              "reads, writes)\n--\n\n"
              "(args, ctx, config) -> outputs: a launch of packed arguments over these buffers.",
    .tp_basicsize = sizeof(QuickLaunch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = bound_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(QuickLaunch, call),
    .tp_traverse = quick_traverse,
    .tp_clear = quick_clear,
    .tp_dealloc = quick_dealloc,
};

/* -- Maker: what operations are made by */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *dict;      /* __name__, __doc__ and so on */
    PyObject *weak;      /* references to it */
    PyObject *original;  /* the function in Python, which gets all but the commonest */
    PyTypeObject *class; /* of what is made, and where its slots lie */
    Py_ssize_t places[6];
    PyTypeObject *sources[2]; /* what `then` is a method of, and where their _consumed lies; or Tensor */
    Py_ssize_t consumed[2];
} Maker;

static PyObject *make_operand(PyObject *callable, PyObject *const *args, size_t given, PyObject *names) {
    Maker *self = (Maker *)callable;
    if (PyVectorcall_NARGS(given) != 1 || names != NULL || !Py_IS_TYPE(args[0], self->sources[0]))
        return PyObject_Vectorcall(self->original, args, given, names);
    PyObject *made = self->class->tp_alloc(self->class, 0);
    if (made != NULL) put(made, self->places[0], args[0]);
    return made;
}

static PyObject *make_then(PyObject *callable, PyObject *const *args, size_t given, PyObject *names) {
    Maker *self = (Maker *)callable;
    if (PyVectorcall_NARGS(given) == 2 && names == NULL && Py_IS_TYPE(args[1], &PyFunction_Type)) {
        int which = Py_IS_TYPE(args[0], self->sources[0]) ? 0 : 1;
        if (Py_IS_TYPE(args[0], self->sources[which]) && *at(args[0], self->consumed[which]) == Py_False) {
            PyObject *made = self->class->tp_alloc(self->class, 0);
            if (made == NULL) return NULL;
            put(args[0], self->consumed[which], Py_True);
            put(made, self->places[0], Py_False);
            put(made, self->places[1], args[0]);
            put(made, self->places[2], args[1]);
            return made;
        }
    }
    return PyObject_Vectorcall(self->original, args, given, names);
}

static PyObject *make_launch(PyObject *callable, PyObject *const *args, size_t given, PyObject *names) {
    Maker *self = (Maker *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(given) - 3;
    if (count < 0 || names != NULL || !PyLong_CheckExact(args[1]) || !PyLong_CheckExact(args[2]))
        return PyObject_Vectorcall(self->original, args, given, names);
    PyObject *launch = PyObject_GetAttr(args[0], launch_name);
    if (launch == NULL) return NULL;
    if (launch == Py_None) { /* its first */
        Py_DECREF(launch);
        return PyObject_Vectorcall(self->original, args, given, names);
    }
    PyObject *arguments = tuple_of(args + 3, count), *config = PyTuple_Pack(3, args[1], args[2], zero);
    PyObject *made = arguments != NULL && config != NULL ? self->class->tp_alloc(self->class, 0) : NULL;
    if (made != NULL) {
        put(made, self->places[0], Py_False);
        put(made, self->places[1], Py_None);
        put(made, self->places[2], args[0]);
        put(made, self->places[3], config);
        put(made, self->places[4], arguments);
        put(made, self->places[5], launch);
    }
    Py_XDECREF(arguments);
    Py_XDECREF(config);
    Py_DECREF(launch);
    return made;
}

static const struct {
    vectorcallfunc call;
    const char *slots[6];
    int sources;
} kinds[] = {
    {make_operand, {"tensor"}, 1},
    {make_then, {"_consumed", "_source", "_f"}, 2},
    {make_launch, {"_consumed", "_bound_on", "_function", "_config", "_args", "_launch"}, 0},
};
enum { MAKES_OPERAND, MAKES_THEN, MAKES_LAUNCH };

static PyObject *maker_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    int kind;
    PyObject *original;
    PyTypeObject *class, *sources[2] = {NULL, NULL};
    if (!PyArg_ParseTuple(args, "iOO!|O!O!:Maker", &kind, &original, &PyType_Type, &class, &PyType_Type, &sources[0],
                          &PyType_Type, &sources[1]))
        return NULL;
    if (kind < MAKES_OPERAND || kind > MAKES_LAUNCH || PyTuple_GET_SIZE(args) != 3 + kinds[kind].sources) {
        PyErr_SetString(PyExc_ValueError, "no such kind, or a wrong number of classes for it");
        return NULL;
    }
    Maker *self = (Maker *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = kinds[kind].call;
    self->original = Py_NewRef(original);
    self->class = (PyTypeObject *)Py_NewRef(class);
    for (int i = 0; i < 6 && kinds[kind].slots[i] != NULL; i++) {
        self->places[i] = find_slot(class, kinds[kind].slots[i]);
        if (self->places[i] < 0) goto failed;
    }
    for (int i = 0; i < kinds[kind].sources; i++) {
        self->sources[i] = (PyTypeObject *)Py_NewRef(sources[i]);
        if (kind != MAKES_THEN) continue;
        self->consumed[i] = find_slot(sources[i], "_consumed");
        if (self->consumed[i] < 0) goto failed;
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static PyObject *maker_bind(PyObject *self, PyObject *object, PyObject *class) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* As functions are pickled and copied: by name. */
static PyObject *maker_reduce(PyObject *self, PyObject *unused) {
    return PyObject_GetAttrString(((Maker *)self)->original, "__qualname__");
}

static PyObject *maker_repr(PyObject *self) {
    return PyObject_Repr(((Maker *)self)->original);
}

static int maker_traverse(PyObject *object, visitproc visit, void *arg) {
    Maker *self = (Maker *)object;
    Py_VISIT(self->dict);
    Py_VISIT(self->original);
    Py_VISIT(self->class);
    Py_VISIT(self->sources[0]);
    Py_VISIT(self->sources[1]);
    return 0;
}

static int maker_clear(PyObject *object) {
    Py_CLEAR(((Maker *)object)->dict);
    return 0;
}

static void maker_dealloc(PyObject *object) {
    Maker *self = (Maker *)object;
    PyObject_GC_UnTrack(object);
    if (self->weak != NULL) PyObject_ClearWeakRefs(object);
    Py_XDECREF(self->dict);
    Py_XDECREF(self->original);
    Py_XDECREF(self->class);
    Py_XDECREF(self->sources[0]);
    Py_XDECREF(self->sources[1]);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef maker_methods[] = {{"__reduce__", maker_reduce, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef maker_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject MakerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cuda_async.native._native.Maker",
    .tp_doc = "Maker(kind, original, class, *sources)\n--\n\n"
              "Does what `original` does: makes a Read or Mut of a Tensor (its source), a Then (of a Then or a Launch), or a\n"
              "Launch. A method where it is a class's attribute.",
    .tp_basicsize = sizeof(Maker),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = maker_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Maker, call),
    .tp_dictoffset = offsetof(Maker, dict),
    .tp_weaklistoffset = offsetof(Maker, weak),
    .tp_descr_get = maker_bind,
    .tp_repr = maker_repr,
    .tp_methods = maker_methods,
    .tp_getset = maker_attributes,
    .tp_traverse = maker_traverse,
    .tp_clear = maker_clear,
    .tp_dealloc = maker_dealloc,
};

/* -- the module */

static PyMethodDef functions[] = {
    {"learn", learn, METH_VARARGS,
     "learn(read, mut, tensor, buffer, usage, stream, context)\n--\n\nNote where the slots of these classes lie."},
    {"knows", knows, METH_O, "knows(tensor)\n--\n\nWhether the last `learn` was about this class."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "What every launch does, compiled.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    struct { PyObject **name; const char *text; } names[] = {
        {&checked_name, "checked"}, {&lock_name, "_lock"},       {&acquire_name, "acquire"},      {&release_name, "release"},
        {&bind_on_name, "bind_on"}, {&driver_name, "driver"}, {&failed_name, "launch_failed"},
        {&launch_name, "_launch"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *names[i].name = PyUnicode_InternFromString(names[i].text);
        if (*names[i].name == NULL) return NULL;
    }
    zero = PyLong_FromLong(0);
    if (zero == NULL) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddType(module, &EnqueueType) < 0 || PyModule_AddType(module, &QuickLaunchType) < 0 ||
        PyModule_AddType(module, &QuickBoundLaunchType) < 0 ||
        PyModule_AddType(module, &MakerType) < 0 ||
        PyModule_AddIntConstant(module, "VERSION", 4) < 0 || PyModule_AddIntMacro(module, MAKES_OPERAND) < 0 ||
        PyModule_AddIntMacro(module, MAKES_THEN) < 0 || PyModule_AddIntMacro(module, MAKES_LAUNCH) < 0 || PyModule_AddIntMacro(module, READS) < 0 ||
        PyModule_AddIntMacro(module, WRITES) < 0 || PyModule_AddIntMacro(module, INTEGER) < 0 ||
        PyModule_AddIntMacro(module, FLOAT) < 0 || PyModule_AddIntMacro(module, MAX_ARGUMENTS) < 0 ||
        PyModule_AddIntMacro(module, MAX_BLOCK_BYTES) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
