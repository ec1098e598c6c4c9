"""Writes a C file with eas_build_id(), the hash of the library's sources and of the compiler's version, part
of every cache key, and eas_llvm_version().

usage: build_id.py OUT LLVM_VERSION SOURCE...
"""
import hashlib
import sys

out, llvm, *sources = sys.argv[1:]
h = hashlib.sha256(llvm.encode())
for path in sorted(sources):
    with open(path, "rb") as f:
        h.update(f.read())
with open(out, "w") as f:
    f.write(f'#include "eas.h"\nconst char *eas_build_id(void) {{ return "{h.hexdigest()[:32]}"; }}\nconst char *eas_llvm_version(void) {{ return "{llvm}"; }}\n')
