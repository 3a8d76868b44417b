"""The C library: found, loaded, compared with the declarations it is called by, and its errors as Python exceptions.

The library is the file that FEWHEAD_LIB names, else libfewhead.so beside this module.
"""

import ctypes
import os

from . import _abi as abi

LIBRARY_NAME = "libfewhead.so"


class LoadError(ImportError):
    """The library cannot be used; the text says what was found and what was wanted."""


def _path():
    return os.environ.get("FEWHEAD_LIB") or os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY_NAME)


# ---- Another library in this process


def mapped_libraries(maps="/proc/self/maps"):
    """Paths of the files named libfewhead.so, or libfewhead.so.N, that this process has loaded."""
    try:
        with open(maps, encoding="utf-8", errors="surrogateescape") as f:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in f if "/" in line}
    except OSError:
        return []
    return sorted(path for path in paths if os.path.basename(path).split(".so")[0] == "libfewhead" and ".so" in path)


def _same_file(a, b):
    try:
        return os.path.samefile(a, b)
    except OSError:
        return a == b


def _refuse_others(path):
    """A process holds one library: two of them do not share devices, and a struct of one is not one of the other."""
    for other in mapped_libraries():
        if _same_file(other, path):
            continue
        try:
            known = ctypes.CDLL(other, mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
            checksum = known.fh_header_checksum
            checksum.restype, known.fh_build_info.restype = ctypes.c_uint32, ctypes.c_char_p
        except (OSError, AttributeError):
            continue  # deleted since, or not a library of ours
        if checksum() != abi.CHECKSUM:
            raise LoadError(
                f"fewhead: this process already has another library: {other} ({known.fh_build_info().decode()}); wanted "
                f"one version in a process, that of {path} (version {abi.FH_VERSION}, header {abi.CHECKSUM})"
            )


# ---- Loading


def _declare(lib, path):
    for name, (result, arguments) in abi.FUNCTIONS.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise LoadError(f"fewhead: {path} has no {name}; wanted a library of version {abi.FH_VERSION}") from None
        function.restype, function.argtypes = result, arguments


def _compare(lib, path):
    """Refuse a library whose structs are not those of _abi.py."""
    if lib.fh_header_checksum() != abi.CHECKSUM:
        raise LoadError(
            f"fewhead: {path} was built from another fewhead.h: got version {lib.fh_version()}, header "
            f"{lib.fh_header_checksum()}, wanted version {abi.FH_VERSION}, header {abi.CHECKSUM}"
        )
    for name, struct in abi.STRUCTS.items():
        theirs = lib.fh_struct_bytes(name.encode())
        if theirs != ctypes.sizeof(struct):
            raise LoadError(f"fewhead: {path} lays out {name} in {theirs} bytes, the declarations in {ctypes.sizeof(struct)}")


def _load():
    path = _path()
    _refuse_others(path)
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise LoadError(
            f"fewhead: the library does not load: {error}; wanted the file of the wheel, or FEWHEAD_LIB with the path "
            "of a libfewhead.so"
        ) from None
    for name in ("fh_header_checksum", "fh_version", "fh_struct_bytes"):
        if not hasattr(lib, name):
            raise LoadError(f"fewhead: {path} is no fewhead library: it has no {name}")
    lib.fh_header_checksum.restype = ctypes.c_uint32
    lib.fh_struct_bytes.restype, lib.fh_struct_bytes.argtypes = ctypes.c_uint64, [ctypes.c_char_p]
    _compare(lib, path)
    _declare(lib, path)
    return lib, path


lib, path = _load()


def version():
    """ "0.2.0", the library's version."""
    number = lib.fh_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def build_info():
    """One line: version, commit, compiler, CUDA or not."""
    return lib.fh_build_info().decode()


# ---- Errors

EXCEPTIONS = {
    abi.FH_ERR_ARGUMENT: ValueError,
    abi.FH_ERR_SHAPE: ValueError,
    abi.FH_ERR_STRIDE: ValueError,
    abi.FH_ERR_ALIGNMENT: ValueError,
    abi.FH_ERR_OVERLAP: ValueError,
    abi.FH_ERR_UNSUPPORTED: NotImplementedError,
    abi.FH_ERR_MEMORY: MemoryError,
}


def error(status):
    """The exception for a status that is not FH_OK, with the library's own line. Call it in the thread that failed, at once."""
    text = lib.fh_error().decode(errors="replace")
    return EXCEPTIONS.get(status, RuntimeError)(text)


def check(status):
    """Raise what `error` makes of a status that is not FH_OK."""
    if status:
        raise error(status)


# ---- The driver


def cuda_toolkit():
    """(13, 0): the CUDA toolkit that the library was built with; None for a library without CUDA."""
    words = build_info().replace(",", " ").split()
    for at, word in enumerate(words[:-1]):
        if word == "CUDA" and words[at + 1][0].isdigit():
            major, _, minor = words[at + 1].partition(".")
            return int(major), int(minor or 0)
    return None


def driver_version():
    """(13, 0): the newest CUDA that this machine's driver knows; None where there is no libcuda."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int()
        if cuda.cuDriverGetVersion(ctypes.byref(number)) or number.value <= 0:
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def driver_problem(toolkit, driver):
    """What keeps CUDA devices from being used, in one line; None where nothing does.

    A driver runs compiled kernels of every toolkit of its own major version, and of older ones (CUDA compatibility, minor
    version)."""
    if toolkit is None:
        return "CUDA: this library was built without it; wanted a library built where nvcc is"
    wanted = f"wanted a driver for CUDA {toolkit[0]}.0 or newer"
    if driver is None:
        return f"CUDA: found no driver (libcuda.so.1), {wanted}"
    if driver[0] < toolkit[0]:
        found, built = f"{driver[0]}.{driver[1]}", f"{toolkit[0]}.{toolkit[1]}"
        return f"CUDA: found a driver for CUDA {found}, {wanted}: the library was built with CUDA {built}"
    return None
