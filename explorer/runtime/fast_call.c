// explorer.softmax(x, out=y) on PyTorch tensors, without Python between the call and the launch.
//
// A call goes through five steps, which are the sections of this file:
//
//   1. Is it a plain call? Exact tensors, no gradient, no mode, transform or tracer that looks on.
//   2. Describe the tensors by DLPack's C exchange API: addresses, shapes, strides, type, device.
//   3. Find the launch that was prepared for such tensors in a hash table.
//   4. Allocate the output if none is given, and ask for the current stream.
//   5. Launch by the driver's cuLaunchKernelEx, with the GIL released.
//
// A call that fails at any step belongs to Python: call() hands it, with its arguments as they
// are, to `otherwise`, or to `learn` if the call is plain and the table has no launch for it yet.
// `learn` serves it, and puts the launch into the table by remember(). This file therefore raises
// no error of its own during a call, and decides nothing about softmax.
//
// Every function here runs with the GIL held, except for the one launch. So the table needs no
// lock.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { MOST_AXES = 8, MOST_ARGUMENTS = 16, MOST_QUESTIONS = 8, SLOTS = 1 << 13 };

// ---------------------------------------------------------------- other libraries' structures

// DLTensor of dlpack.h, version 1.
typedef struct {
  void* data;
  int32_t device_type, device;
  int32_t axes;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t *shape, *strides;  // strides are in elements
  uint64_t byte_offset;
} Description;

enum { DEVICE_CPU = 1, TYPE_FLOAT = 2, TYPE_BFLOAT = 4 };  // kDLCPU, kDLFloat, kDLBfloat

// DLPackExchangeAPI of dlpack.h, version 1. Of its functions we call the last two.
typedef struct Exchange {
  uint32_t major, minor;
  struct Exchange* previous;
  void *allocate, *export_tensor, *import_tensor;
  int (*describe)(PyObject* tensor, Description* description);
  int (*current_stream)(int32_t device_type, int32_t device, void** stream);
} Exchange;

// CUlaunchAttribute of cuda.h: an identifier, and 64 bytes from its eighth on.
typedef struct {
  int id;
  char pad[4];
  int value[16];
} Attribute;

enum { OVERLAPS = 6 };  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

// The only attribute of our launches: each may begin before the one before it has ended. Its kernel
// waits for that.
static Attribute overlap = {OVERLAPS, {0}, {1}};

// CUlaunchConfig of cuda.h.
typedef struct {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned attribute_count;
} LaunchConfig;

// ---------------------------------------------------------------- what Python has given

// A function without arguments, and what it returns if nothing looks on. If it is a function of C
// that takes none, `direct` is that one, which is called in less time than the object.
typedef struct {
  PyObject *function, *self, *expected;
  PyCFunction direct;
} Question;

static struct Given {
  PyObject* objects;  // the tuple that owns all of the following ones
  PyObject *tensor, *parameter;  // torch.Tensor and torch.nn.Parameter
  PyObject* dtype;  // torch.dtype
  PyObject* cuda;  // the text
  PyMethodDescrObject* is_negated;  // a method of tensors
  PyGetSetDescrObject* requires_grad;  // a property of tensors
  PyObject *gradients_enabled, *autocast_enabled, *bump_version;  // functions
  Question questions[MOST_QUESTIONS];
  Py_ssize_t question_count;
  PyObject* values;  // triples (namespace, name, the value if nothing looks on)
  PyObject *otherwise, *learn;  // what serves the calls that this file does not
  PyObject* operator;  // what serves those of generated code that this file does not
  const Exchange* exchange;
  int (*launch)(const LaunchConfig*, void* function, void** parameters, void** extra);
  int (*current_context)(void** context);
  Py_ssize_t most;  // entries of the table
} given;

// The arguments of a call, in order.
enum { LOG, X, DIM, SCALE, MASK, LENGTHS, DTYPE, OUT, ARGUMENT_COUNT };

// ---------------------------------------------------------------- 1. Is it a plain call?

// Whether a result is a certain object: true, false, none and small integers exist once.
static int is_expected(PyObject* result, PyObject* expected) {
  Py_XDECREF(result);  // the expected object lives on
  return result == expected;
}

static int returns(PyObject* function, PyObject* argument, PyObject* expected) {
  return is_expected(
      argument ? PyObject_CallOneArg(function, argument) : PyObject_CallNoArgs(function), expected);
}

// Whether no mode, transform or tracer looks on. Most calls get past this, so each question must be
// cheap: it takes 10 to 20 ns, and 40 to 100 with PyTorch 2.11.
static int answers_are_plain(void) {
  for (const Question* one = given.questions; one < given.questions + given.question_count; one++) {
    PyObject* answer =
        one->direct ? one->direct(one->self, NULL) : PyObject_CallNoArgs(one->function);
    if (!is_expected(answer, one->expected)) return 0;
  }
  return 1;
}

// Whether no gradient that goes forward, compilation or log of shapes looks on.
static int values_are_plain(void) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.values); i++) {
    PyObject* triple = PyTuple_GET_ITEM(given.values, i);
    PyObject* value =
        PyDict_GetItemWithError(PyTuple_GET_ITEM(triple, 0), PyTuple_GET_ITEM(triple, 1));
    if (value != PyTuple_GET_ITEM(triple, 2)) return 0;
  }
  return 1;
}

// Whether a tensor's memory holds its elements.
static int is_memory(PyObject* x) {
  PyObject* type = (PyObject*)Py_TYPE(x);
  return (type == given.tensor || type == given.parameter) &&
      is_expected(given.is_negated->d_method->ml_meth(x, NULL), Py_False);
}

// Whether besides nobody wants to know how the elements came about.
static int is_plain_tensor(PyObject* x) {
  if (!is_memory(x)) return 0;
  const PyGetSetDef* property = given.requires_grad->d_getset;
  PyObject* wanted = property->get(x, property->closure);
  Py_XDECREF(wanted);
  return wanted == Py_False || (wanted && returns(given.gradients_enabled, NULL, Py_False));
}

static int has_plain_arguments(PyObject* const* call) {
  PyObject *scale = call[SCALE], *dtype = call[DTYPE];
  return call[MASK] == Py_None && call[LENGTHS] == Py_None && PyLong_CheckExact(call[DIM]) &&
      (scale == Py_None || PyLong_CheckExact(scale) ||
       (PyFloat_CheckExact(scale) && isfinite(PyFloat_AS_DOUBLE(scale)))) &&
      (dtype == Py_None || (PyObject*)Py_TYPE(dtype) == given.dtype);
}

static int is_plain_call(PyObject* const* call) {
  return has_plain_arguments(call) && answers_are_plain() && values_are_plain() &&
      is_plain_tensor(call[X]) && (call[OUT] == Py_None || is_plain_tensor(call[OUT]));
}

// ---------------------------------------------------------------- 2. Describe the tensors

// What launches are found by. Unused words at the end are not compared.
typedef struct {
  int64_t words[7 + 3 * MOST_AXES];
  size_t count;
  uint64_t hash;
} Key;

static void add(Key* key, int64_t word) {
  key->words[key->count++] = word;
  key->hash = (key->hash ^ (uint64_t)word) * 0x9E3779B97F4A7C15u;  // 2^64 / the golden ratio
  key->hash ^= key->hash >> 32;
}

static uintptr_t address(const Description* tensor) {
  return (uintptr_t)tensor->data + tensor->byte_offset;
}

static int64_t type_word(const Description* tensor) {
  return tensor->type_code | tensor->type_bits << 8 | (int64_t)tensor->type_lanes << 16;
}

// Describes a tensor. It fails for tensors without memory of their own, such as sparse and nested
// ones and those that vmap made; and for empty ones, whose address is NULL.
static int describe(PyObject* tensor, Description* found) {
  return !given.exchange->describe(tensor, found) && found->axes <= MOST_AXES && found->data;
}

// Whether the elements lie as the indices count, without a gap.
static int is_contiguous(const Description* x) {
  int64_t stride = 1;
  for (int axis = x->axes - 1; axis >= 0; axis--) {
    if (x->shape[axis] != 1 && x->strides[axis] != stride) return 0;
    stride *= x->shape[axis];
  }
  return 1;
}

// Whether autocast would make a result of single precision: it does so with halves on CUDA.
static int is_autocast(PyObject* dtype, const Description* x) {
  return dtype == Py_None && x->type_bits == 16 && x->device_type != DEVICE_CPU &&
      !returns(given.autocast_enabled, given.cuda, Py_False);
}

// Describes the tensors of a plain call and makes its key; `out` only if the call has one.
static int read_call(PyObject* const* call, Description* x, Description* out, Key* key) {
  int has_out = call[OUT] != Py_None;
  if (!describe(call[X], x) || (has_out && !describe(call[OUT], out))) return 0;
  if (x->type_code != TYPE_FLOAT && x->type_code != TYPE_BFLOAT) return 0;
  if (is_autocast(call[DTYPE], x)) return 0;
  int64_t in_place = has_out && address(x) == address(out);
  key->count = key->hash = 0;
  add(key, (call[LOG] == Py_True) | (call[SCALE] != Py_None) << 1 | in_place << 2);
  add(key, PyLong_AsLong(call[DIM]));
  add(key, (int64_t)(intptr_t)call[DTYPE]);  // types of PyTorch exist once
  add(key, type_word(x));
  add(key, (int64_t)x->device_type << 32 | (uint32_t)x->device);
  add(key, x->axes);
  size_t axes_bytes = (size_t)x->axes * sizeof *x->shape;
  for (int axis = 0; axis < x->axes; axis++) add(key, x->shape[axis]), add(key, x->strides[axis]);
  if (!has_out) return !PyErr_Occurred();
  if (out->device_type != x->device_type || out->device != x->device || out->axes != x->axes ||
      memcmp(out->shape, x->shape, axes_bytes)) {
    return 0;
  }
  add(key, type_word(out));
  for (int axis = 0; axis < x->axes; axis++) add(key, out->strides[axis]);
  return !PyErr_Occurred();
}

// ---------------------------------------------------------------- 3. Find the launch

// What a kernel's argument is: a number that stays, or one that each call gives.
enum Kind { CONSTANT, INPUT, OUTPUT, SCALE_F32, SCALE_F64, KIND_COUNT };

// A prepared launch. It never changes once it is in the table.
typedef struct {
  Key key;
  void *function, *context;
  LaunchConfig config;  // without stream
  int argument_count;
  uint8_t kinds[MOST_ARGUMENTS];
  char constants[MOST_ARGUMENTS][8];
  uintptr_t mask;  // bits that no address may have
  Py_ssize_t input_bytes, output_bytes;
  PyObject *allocate, *allocate_arguments;
  PyObject* alive;  // the kernel's module, and whatever else must outlive the entry
  int users;  // the table is one of them, and each call that goes on
} Entry;

static Entry* table[SLOTS];
static Py_ssize_t entry_count;

static void leave(Entry* entry) {
  if (--entry->users) return;
  Py_XDECREF(entry->allocate);
  Py_XDECREF(entry->allocate_arguments);
  Py_XDECREF(entry->alive);
  PyMem_Free(entry);
}

// Returns the slot of a key: that of its entry, or the empty one where its entry would be.
static Entry** slot_of(const Key* key) {
  for (size_t at = key->hash % SLOTS;; at = (at + 1) % SLOTS) {
    const Entry* entry = table[at];
    if (!entry ||
        (entry->key.hash == key->hash && entry->key.count == key->count &&
         !memcmp(entry->key.words, key->words, key->count * sizeof *key->words))) {
      return &table[at];
    }
  }
}

static void empty_table(void) {
  for (size_t at = 0; at < SLOTS && entry_count; at++) {
    Entry* entry = table[at];
    table[at] = NULL;
    if (entry) entry_count--, leave(entry);
  }
}

// ---------------------------------------------------------------- 4. Allocate the output

// Whether an output lies over a part of an input that is not itself. A kernel may then read what
// another block of it has written.
static int overlaps(const Entry* entry, uintptr_t source, uintptr_t target) {
  return source != target && source < target + (size_t)entry->output_bytes &&
      target < source + (size_t)entry->input_bytes;
}

static PyObject* new_output(const Entry* entry, const Description* x, Description* out) {
  PyObject* made = PyObject_Call(entry->allocate, entry->allocate_arguments, NULL);
  // It is on the current GPU of PyTorch, which may be another than that of the current context.
  if (made && (!describe(made, out) || out->device != x->device)) Py_CLEAR(made);
  return made;
}

// ---------------------------------------------------------------- 5. Launch

// Launches with the GIL released; returns the driver's status. Whatever differs between calls is on
// this thread's stack, so that threads may share an entry.
static int launch(
    const Entry* entry, void* stream, uintptr_t source, uintptr_t target, double scale) {
  float scale_f32 = (float)scale;
  void* places[KIND_COUNT] = {NULL, &source, &target, &scale_f32, &scale};
  void* parameters[MOST_ARGUMENTS];
  for (int i = 0; i < entry->argument_count; i++) {
    int kind = entry->kinds[i];
    parameters[i] = kind == CONSTANT ? (void*)entry->constants[i] : places[kind];
  }
  LaunchConfig config = entry->config;
  config.stream = stream;
  PyThreadState* thread = PyEval_SaveThread();
  int status = given.launch(&config, entry->function, parameters, NULL);
  PyEval_RestoreThread(thread);
  return status;
}

// A tuple of one object, which is None between calls: to make one takes 20 ns of each call.
static PyObject* spare;

// Tells autograd that a tensor was written, as PyTorch tells it. If it cannot, sets the error.
static int tell_written(PyObject* tensor) {
  PyObject* told = spare;
  spare = NULL;  // until this call gives it back, other threads take another
  if (told && Py_REFCNT(told) > 1) Py_CLEAR(told);  // somebody has found it
  if (!told && !(told = PyTuple_Pack(1, Py_None))) return 0;
  Py_DECREF(PyTuple_GET_ITEM(told, 0));
  PyTuple_SET_ITEM(told, 0, Py_NewRef(tensor));
  int is_told = returns(given.bump_version, told, Py_None);
  if (spare || Py_REFCNT(told) > 1) return Py_DECREF(told), is_told;
  Py_DECREF(tensor);
  PyTuple_SET_ITEM(told, 0, Py_NewRef(Py_None));
  spare = told;
  return is_told;
}

static double scale_of(PyObject* scale) {
  if (scale == Py_None) return 0;  // no kernel reads it
  return PyFloat_CheckExact(scale) ? PyFloat_AS_DOUBLE(scale) : PyLong_AsDouble(scale);
}

// Runs steps 4 and 5 for an entry; returns the output. If it returns NULL and has not launched,
// Python must serve the call. Once it has launched, Python must not: x may be overwritten.
static PyObject* run(
    const Entry* entry, PyObject* const* call, const Description* x, Description* out,
    int* has_launched) {
  void *context = NULL, *stream = NULL;
  if (given.current_context(&context) || context != entry->context) return NULL;
  double scale = scale_of(call[SCALE]);
  if (PyErr_Occurred()) return NULL;  // the scale is too large
  int is_given = call[OUT] != Py_None;
  PyObject* output = is_given ? Py_NewRef(call[OUT]) : new_output(entry, x, out);
  if (!output) return NULL;
  uintptr_t source = address(x), target = address(out);
  int is_misplaced =
      (source | target) & entry->mask || (is_given && overlaps(entry, source, target));
  int has_stream = x->device_type == DEVICE_CPU ||
      !given.exchange->current_stream(x->device_type, x->device, &stream);
  *has_launched = !is_misplaced && has_stream && !launch(entry, stream, source, target, scale);
  int is_done = *has_launched && (!is_given || tell_written(output));
  if (!is_done) Py_CLEAR(output);
  return output;
}

// As run(), with the entry kept until its end.
static PyObject* run_kept(
    Entry* entry, PyObject* const* call, const Description* x, Description* out,
    int* has_launched) {
  entry->users++;
  PyObject* result = run(entry, call, x, out, has_launched);
  leave(entry);
  return result;
}

// ---------------------------------------------------------------- functions for Python

// Hands a call to a function of Python. What went wrong before goes wrong there too, where it has
// its sentence.
static PyObject* hand_over(PyObject* python, PyObject* const* arguments) {
  PyErr_Clear();
  Py_INCREF(python);
  PyObject* result = PyObject_Vectorcall(python, arguments, ARGUMENT_COUNT, NULL);
  Py_DECREF(python);
  return result;
}

// Whether a function has all its arguments, and what configure() gives; if not, sets the error.
static int has_told(const char* name, Py_ssize_t count) {
  if (given.exchange && count == ARGUMENT_COUNT) return 1;
  PyErr_Format(PyExc_TypeError, "%s takes %d arguments, after configure", name, ARGUMENT_COUNT);
  return 0;
}

static PyObject* call(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  (void)module;
  if (!has_told("call", count)) return NULL;
  Description x, out;
  Key key;
  PyObject *result = NULL, *python = given.otherwise;
  int has_launched = 0;
  if (is_plain_call(arguments) && read_call(arguments, &x, &out, &key)) {
    Entry* entry = *slot_of(&key);
    if (entry) {
      result = run_kept(entry, arguments, &x, &out, &has_launched);
    } else {
      python = given.learn;
    }
  }
  return result || has_launched ? result : hand_over(python, arguments);
}

// Serves a call from below gradients, modes and transforms, where kernels of PyTorch run: so nobody
// is asked whether one of them looks on. `told` are x, dim, scale, mask, causal, lengths, dtype and
// log. Outputs are contiguous. If it returns NULL and has not launched, it has no launch for such a
// call.
static PyObject* run_below(PyObject* const* told, int* has_launched) {
  PyObject* const arguments[ARGUMENT_COUNT] = {told[7], told[0], told[1], told[2],
                                               told[3], told[5], told[6], Py_None};
  Description x, out;
  Key key;
  if (told[4] != Py_False || !has_plain_arguments(arguments) || !values_are_plain() ||
      !is_memory(arguments[X]) || !read_call(arguments, &x, &out, &key) || !is_contiguous(&x)) {
    return NULL;
  }
  Entry* entry = *slot_of(&key);
  return entry ? run_kept(entry, arguments, &x, &out, has_launched) : NULL;
}

// For the code that torch.compile generates.
static PyObject* as_operator(PyObject* module, PyObject* const* told, Py_ssize_t count) {
  (void)module;
  int has_launched = 0;
  if (!has_told("as_operator", count)) return NULL;
  PyObject* result = run_below(told, &has_launched);
  return result || has_launched ? result : hand_over(given.operator, told);
}

// For the operators behind torch.softmax, which go on in Python where this returns None.
static PyObject* if_known(PyObject* module, PyObject* const* told, Py_ssize_t count) {
  (void)module;
  int has_launched = 0;
  if (!has_told("if_known", count)) return NULL;
  PyObject* result = run_below(told, &has_launched);
  if (result || has_launched) return result;
  PyErr_Clear();  // what went wrong goes wrong in Python too
  Py_RETURN_NONE;
}

// Reads a kernel's arguments: a Kind each, and 8 bytes each, which are the number of a CONSTANT.
static int read_arguments(PyObject* kinds, PyObject* constants, Entry* entry) {
  Py_ssize_t count = PyBytes_GET_SIZE(kinds);
  int fits = count <= MOST_ARGUMENTS && PyBytes_GET_SIZE(constants) == 8 * count;
  for (Py_ssize_t i = 0; fits && i < count; i++)
    fits = (uint8_t)PyBytes_AS_STRING(kinds)[i] < KIND_COUNT;
  if (!fits) return PyErr_SetString(PyExc_ValueError, "the kernel's arguments do not fit"), 0;
  memcpy(entry->kinds, PyBytes_AS_STRING(kinds), (size_t)count);
  memcpy(entry->constants, PyBytes_AS_STRING(constants), 8 * (size_t)count);
  entry->argument_count = (int)count;
  return 1;
}

// remember(call, function, context, grid, block, shared_bytes, overlaps, kinds, constants, mask,
//          input_bytes, output_bytes, allocate, allocate_arguments, alive)
static PyObject* remember(PyObject* module, PyObject* told) {
  (void)module;
  PyObject *plain_call, *kinds, *constants;
  unsigned long long function, context, mask;
  int overlaps;
  Entry* entry = PyMem_Calloc(1, sizeof *entry);
  if (!entry) return PyErr_NoMemory();
  LaunchConfig* config = &entry->config;
  for (int i = 0; i < 3; i++) config->grid[i] = config->block[i] = 1;
  int is_read = PyArg_ParseTuple(
      told, "O!KKIIIpSSKnnOO!O", &PyTuple_Type, &plain_call, &function, &context, &config->grid[0],
      &config->block[0], &config->shared_bytes, &overlaps, &kinds, &constants, &mask,
      &entry->input_bytes, &entry->output_bytes, &entry->allocate, &PyTuple_Type,
      &entry->allocate_arguments, &entry->alive);
  if (!is_read) return PyMem_Free(entry), NULL;
  if (overlaps) config->attributes = &overlap, config->attribute_count = 1;
  Py_INCREF(entry->allocate), Py_INCREF(entry->allocate_arguments), Py_INCREF(entry->alive);
  entry->users = 1;
  entry->function = (void*)(uintptr_t)function;
  entry->context = (void*)(uintptr_t)context;
  entry->mask = (uintptr_t)mask;
  Description x, out;
  int is_known = given.exchange && PyTuple_GET_SIZE(plain_call) == ARGUMENT_COUNT &&
      read_arguments(kinds, constants, entry) &&
      read_call(&PyTuple_GET_ITEM(plain_call, 0), &x, &out, &entry->key);
  if (is_known && entry_count >= given.most) empty_table();
  Entry** slot = is_known ? slot_of(&entry->key) : NULL;
  if (slot && !*slot) {
    *slot = entry, entry_count++;
  } else {  // another thread was faster
    leave(entry);
  }
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

static PyObject* forget(PyObject* module, PyObject* nothing) {
  (void)module, (void)nothing;
  empty_table();
  Py_RETURN_NONE;
}

static PyObject* size(PyObject* module, PyObject* nothing) {
  (void)module, (void)nothing;
  return PyLong_FromSsize_t(entry_count);
}

// Reads pairs of a function and what it returns if nothing looks on; if it cannot, sets the error.
static int read_questions(PyObject* answers, struct Given* next) {
  next->question_count = PyTuple_GET_SIZE(answers);
  if (next->question_count > MOST_QUESTIONS)
    return PyErr_Format(PyExc_ValueError, "there are more than %d answers", MOST_QUESTIONS), 0;
  for (Py_ssize_t i = 0; i < next->question_count; i++) {
    Question* one = &next->questions[i];
    PyObject* pair = PyTuple_GET_ITEM(answers, i);
    if (!PyArg_ParseTuple(pair, "OO", &one->function, &one->expected)) return 0;
    if (PyCFunction_CheckExact(one->function) &&
        PyCFunction_GET_FLAGS(one->function) == METH_NOARGS) {
      one->direct = PyCFunction_GET_FUNCTION(one->function);
      one->self = PyCFunction_GET_SELF(one->function);
    }
  }
  return 1;
}

// configure(objects, exchange, launch, current_context, most): what calls need of PyTorch, the
// driver and Python. `objects` has those of `given`, in order; functions of the driver are
// addresses.
static PyObject* configure(PyObject* module, PyObject* told) {
  (void)module;
  PyObject *objects, *exchange;
  unsigned long long launch_address, context_address;
  Py_ssize_t most;
  if (!PyArg_ParseTuple(
          told, "O!OKKn", &PyTuple_Type, &objects, &exchange, &launch_address, &context_address,
          &most)) {
    return NULL;
  }
  const Exchange* found = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
  if (!found) return NULL;
  while (found && found->major > 1) found = found->previous;
  if (!found || found->major != 1 || !found->describe || !found->current_stream) {
    PyErr_SetString(PyExc_ValueError, "PyTorch's DLPack exchange API is not of version 1");
    return NULL;
  }
  if (most < 1 || most > SLOTS / 2) {
    return PyErr_Format(PyExc_ValueError, "most is %zd; it must be 1 to %d", most, SLOTS / 2);
  }
  struct Given next = {.objects = objects, .exchange = found, .most = most};
  PyObject* answers;
  if (!PyArg_ParseTuple(
          objects, "OOOOO!O!OOOO!O!OOO", &next.tensor, &next.parameter, &next.dtype, &next.cuda,
          &PyGetSetDescr_Type, &next.requires_grad, &PyMethodDescr_Type, &next.is_negated,
          &next.gradients_enabled, &next.autocast_enabled, &next.bump_version, &PyTuple_Type,
          &answers, &PyTuple_Type, &next.values, &next.otherwise, &next.learn, &next.operator) ||
      !read_questions(answers, &next)) {
    return NULL;
  }
  if (next.is_negated->d_method->ml_flags != METH_NOARGS) {
    PyErr_SetString(PyExc_ValueError, "PyTorch's is_neg takes arguments");
    return NULL;
  }
  next.launch = (int (*)(const LaunchConfig*, void*, void**, void**))(uintptr_t)launch_address;
  next.current_context = (int (*)(void**))(uintptr_t)context_address;
  PyObject* before = given.objects;
  Py_INCREF(objects);
  given = next;  // all of it at once: a call finds either the ones before or these
  empty_table();
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL,
     "call(log, x, dim, scale, mask, lengths, dtype, out): the softmax of a tensor."},
    {"as_operator", (PyCFunction)(void (*)(void))as_operator, METH_FASTCALL,
     "as_operator(x, dim, scale, mask, causal, lengths, dtype, log): the same, in generated code."},
    {"if_known", (PyCFunction)(void (*)(void))if_known, METH_FASTCALL,
     "if_known(x, dim, scale, mask, causal, lengths, dtype, log): the same, or None if the table "
     "has no launch."},
    {"remember", remember, METH_VARARGS, "Put the launch for calls of a kind into the table."},
    {"forget", forget, METH_NOARGS, "Empty the table."},
    {"size", size, METH_NOARGS, "Return the number of launches in the table."},
    {"configure", configure, METH_VARARGS, "Say what calls need; must come first."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_fast_call", .m_methods = functions};

PyMODINIT_FUNC PyInit__fast_call(void) { return PyModuleDef_Init(&definition); }
