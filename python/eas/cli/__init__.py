"""The command line: `python -m eas` or `eas`. Exit codes: 0 fine, 1 something was found or failed, 2 the
command was wrong."""

import argparse
import os
import sys

__all__ = ["main"]

_ARGS = """arguments of kernels (--arg, once for each):
  a:f32                 an array of --size elements, filled by --fill
  a:f32[64,32]=random   an array of that shape: zeros, ones, arange, random or a number
  a=data.npy            an array from a file
  N=1000                a Python number; N:int and N:float are one of any value
  s:f32=0.5             a scalar of that dtype
A parameter called N that is not given is --size.
"""


def _version():
    from .._eas import __version__

    return __version__


def _launch_options(p, arrays=True):
    p.add_argument("--arg", action="append", metavar="SPEC", help="an argument, see below")
    if arrays:
        p.add_argument("--size", type=int, default=1024, metavar="N", help="elements of arrays that do not say, and N (default 1024)")
        p.add_argument("--fill", choices=("zeros", "ones", "arange", "random"), default="random", help="content of such arrays (default random)")
        p.add_argument("--seed", type=int, default=0, help="of random content (default 0)")
        p.add_argument("--grid", metavar="X[,Y[,Z]]", help="programs or groups (default: inferred)")


def _kernel(p, what="FILE.py:kernel"):
    p.add_argument("kernel", metavar=what, help="the kernel; :kernel may be left out where the file has one")
    p.add_argument("--meta", action="append", metavar="NAME=VALUE", help="a meta (eas.constexpr) value")


def _parser():
    top = argparse.ArgumentParser(prog="eas", description="Kernels: look at them, run, time and check them; devices and the cache.")
    top.add_argument("--version", action="version", version=f"eas {_version()}")
    top.add_argument("--traceback", action="store_true", help="show where in Python an error came from")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name, text, epilog=None):
        return sub.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)

    p = command("info", "versions (LLVM's too), devices with their limits, cache, torch")
    p.add_argument("--json", action="store_true", help="for programs")
    p = command("compile", "show what a kernel becomes", _ARGS)
    _kernel(p)
    _launch_options(p)
    p.add_argument("--emit", choices=("ir", "msl", "opencl", "plan", "llvm", "asm", "obj"), default="ir", help="which form (default ir)")
    p.add_argument("-o", "--output", metavar="FILE", help="where to (default: standard output)")
    p = command("run", "run a kernel given as IR text; prints what it wrote", _ARGS.replace("a:f32 ", "a     ").replace("a:f32[64,32]=random", "a[64,32]=random    "))
    p.add_argument("file", metavar="FILE.ir", help="the text form of a kernel (docs/ir.md); - is standard input")
    _launch_options(p)
    p.add_argument("--device", help="where (default: EAS_BACKEND's, else cpu)")
    p.add_argument("--out", action="append", metavar="NAME=FILE.npy", help="write an argument's content to a file in place of printing it")
    p = command("bench", "time launches of a kernel", _ARGS)
    _kernel(p)
    _launch_options(p)
    p.add_argument("--device", help="where (default: EAS_BACKEND's, else cpu)")
    p.add_argument("--seconds", type=float, default=1.0, help="how long to measure (default 1)")
    p.add_argument("--json", action="store_true", help="for programs")
    p = command("check", "look for races, missing barriers, uninitialised memory and accesses out of bounds; exit code 1 if there are any", _ARGS)
    _kernel(p)
    _launch_options(p)
    p = command("cache", "the compiled kernels on disk")
    p.add_argument("action", choices=("stats", "clear", "verify"), help="verify drops damaged entries; exit code 1 if there were any")
    p = command("doctor", "run a self-test on every device, and say what is wrong and how to mend it; exit code 1 if anything is")
    p.add_argument("--device", action="append", help="only this one")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return top


def _place(error):
    """ "file:line: " of the innermost frame that is the user's, if there is one."""
    import eas

    ours, found, tb = os.path.dirname(os.path.abspath(eas.__file__)), "", error.__traceback__
    while tb:
        file = tb.tb_frame.f_code.co_filename
        if not os.path.abspath(file).startswith(ours) and not file.startswith("<frozen") and os.path.exists(file):
            found = f"{os.path.relpath(file)}:{tb.tb_lineno}: "
        tb = tb.tb_next
    return found


def _explain(error):
    text = str(error)
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    place = _place(error)
    return f"{'' if os.path.basename(place) in text else place}{kind}{text}"


def main(argv=None):
    """Runs a command; the exit code."""
    from .arguments import Refused
    from .commands import COMMANDS

    opts = _parser().parse_args(argv)
    try:
        code = COMMANDS[opts.command](opts)
        sys.stdout.flush()
        return code
    except Refused as e:
        print(f"eas: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # the reader has closed the pipe; the interpreter flushes once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as e:
        if opts.traceback:
            raise
        print(f"eas: {_explain(e)}", file=sys.stderr)
        return 1
