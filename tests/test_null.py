"""The C interface: NULL where an object or a place for a result must be is an error, never a crash. Walks
include/eas.h: each function, each pointer, all others valid."""

import ctypes
import faulthandler
import os
import pathlib
import re
import signal
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build/release/libeas.so"



def functions():
    """(name, result, [(type, name)]) of all that is public."""
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "include/eas.h").read_text(), flags=re.S)
    for text in re.findall(r"^EAS_API\s+([^;{]+?)\s*;", header, re.S | re.M):
        m = re.match(r"(.*?[\s*])(eas_\w+)\s*\((.*)\)$", " ".join(text.split()))
        params, depth, at = [], 0, ""
        for c in m[3] + ",":
            depth += (c == "(") - (c == ")")
            if c == "," and depth == 0:
                params.append(at.strip())
                at = ""
            else:
                at += c
        yield m[2], m[1].strip(), [] if params == ["void"] else params


class Struct(ctypes.Structure):
    """What is returned by value and is no number: large enough for all of them."""

    _fields_ = [("bytes", ctypes.c_char * 1024)]


class Valid:
    """A valid argument for each type of parameter."""

    def __init__(self, lib):
        self.lib = lib
        self.keep = []
        self.device = self.make("eas_device_get", b"cpu")
        self.stream = self.make("eas_stream_new", self.device)
        self.buffer = self.make("eas_buffer_new", self.device, ctypes.c_size_t(4096))
        self.builder = self.make("eas_builder_new", b"k", ctypes.c_uint(0))
        one = self.make("eas_builder_new", b"k", ctypes.c_uint(0))
        lib.eas_builder_param_buffer(one, b"a", 11)
        self.ir = self.make("eas_builder_finish", one)
        self.kernel = self.make("eas_kernel_new", self.ir)
        self.node = self.make("eas_node_number", 11, 0, ctypes.c_int64(0), ctypes.c_double(1))
        nodes = (ctypes.c_void_p * 8)(*[self.node] * 8)
        self.keep.append(nodes)
        self.nodes = ctypes.addressof(nodes)
        self.event = self.made("eas_event_new")
        self.program = self.made("eas_program_new", 0, None, 1, ctypes.c_void_p(self.nodes), self.device)
        self.pullback = self.made("eas_pullback_new", 1, ctypes.c_void_p(self.nodes), 1, ctypes.c_void_p(self.nodes), 0)

    def make(self, name, *args):
        out = ctypes.c_void_p()
        status = getattr(self.lib, name)(*args, ctypes.byref(out))
        assert status == 0 and out.value, f"{name}: {status} {ctypes.string_at(self.lib.eas_error_message()).decode()}"
        return ctypes.c_void_p(out.value)

    def made(self, name, *args):
        try:
            return self.make(name, *args)
        except (AssertionError, AttributeError):
            return None

    def room(self):
        block = ctypes.create_string_buffer(8192)
        self.keep.append(block)
        return ctypes.c_void_p(ctypes.addressof(block))

    def of(self, param):
        """None: there is no such object at hand."""
        kind = re.sub(r"\bconst\b", "", re.sub(r"\b\w+$", "", param)).replace(" ", "") if not param.endswith("]") else "int64_t*"
        if "(" in param:
            return ctypes.cast(ctypes.CFUNCTYPE(None)(lambda: None), ctypes.c_void_p)
        if "*" not in kind:
            return ctypes.c_double(1) if kind == "double" else ctypes.c_int64(1)
        if kind == "char*":
            return ctypes.c_char_p(b"add")
        if kind in ("eas_node**", "eas_node*const*") or ("eas_node" in kind and kind.endswith("**")):
            return ctypes.c_void_p(self.nodes) if "const*" in param.replace(" ", "") else self.room()
        if kind.endswith("**") or not kind.startswith("eas_") or kind in ("eas_value*", "eas_dim*", "eas_dtype*", "eas_arg*", "eas_launch*", "eas_limits*"):
            return None if kind == "eas_launch*" else self.room()
        return getattr(self, kind[4:-1], None)


@unittest.skipUnless(LIBRARY.exists(), "build/release/libeas.so is not built (make ctest or make standin)")
class Null(unittest.TestCase):
    def call(self, f, args):
        """The signal that ended it, or 0."""
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.disable()  # a crash ends the child at once
            signal.alarm(20)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            f(*args)
            os._exit(0)
        return os.WTERMSIG(os.waitpid(child, 0)[1])

    def test_every_pointer_of_every_function(self):
        lib = ctypes.CDLL(str(LIBRARY))
        lib.eas_error_message.restype = ctypes.c_void_p
        valid = Valid(lib)
        seen, bad = 0, []
        structs = re.sub(r"\}\s*(\w+);", r"}\n\1;", (ROOT / "include/eas.h").read_text())
        structs = "\n".join(m for m in structs.splitlines() if re.fullmatch(r"\w+;", m))
        for name, result, params in functions():
            f = getattr(lib, name)
            scalar = result.endswith("*") or result in ("void", "int", "double", "char", "size_t", "unsigned") or result.startswith(("eas_status", "eas_value", "uint", "int"))
            scalar |= result == "eas_param"  # 16 bytes: in registers
            f.restype = ctypes.c_void_p if scalar or not re.search(rf"\b{re.escape(result)}\s*;", structs) else Struct
            args = [valid.of(p) for p in params]
            for i, p in enumerate(params):
                if "*" not in p and "[" not in p or "(" in p:
                    continue
                seen += 1
                less = [None if k == i else a for k, a in enumerate(args)]
                died = self.call(f, less)
                if died:
                    bad.append(f"{name}({p} = NULL): {signal.Signals(died).name}")
        self.assertGreater(seen, 300)
        self.assertEqual(bad, [], "\n" + "\n".join(bad))
