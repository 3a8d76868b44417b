"""The package around the call: declarations from the header, the wheel and its tag, loading, other libraries, the driver."""

import base64
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import abi
import fewhead
import package
from fewhead import _abi, _library

LIBRARY = _library.path
SELF_CHECK = (
    "import torch, fewhead; from fewhead.__main__ import self_check; assert self_check('cpu'); print(fewhead.__version__)"
)


def run(code, path=None, **environment):
    """Run Python code in a process of its own; its status and all that it printed."""
    env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    if path:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    return done.returncode, done.stdout


def compile_library(path, source):
    """A shared library of C source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source, text=True, check=True)
    return path


def pip(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *map(str, arguments)],
        text=True,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
    )


# ---- Declarations

HEADER = """
/* cdef:begin */
enum { SEVEN = 7, MORE = SEVEN + 1, NEXT };
typedef int32_t status; /* a comment; with a semicolon */
typedef enum kind { KIND_A = 1, KIND_B = 1 << 4 } kind;
typedef struct thing thing;
typedef struct pair { double a; double b; } pair;
struct thing {
  uint64_t struct_size; // of another kind
  const float *one, *two;
  pair both[MORE];
  char name[16];
  const thing *next;
  status last;
};
const char *text(status number);
void *none(void);
status fill(thing *where, const char *name, uint64_t bytes, double *us);
void drop(thing **where);
/* cdef:end */
"""


def test_header_is_read():
    header = abi.Header(HEADER)
    assert header.constants == {"SEVEN": 7, "MORE": 8, "NEXT": 9, "KIND_A": 1, "KIND_B": 16}
    assert header.structs["thing"] == [
        ("struct_size", "c_uint64"),
        ("one", "c_void_p"),
        ("two", "c_void_p"),
        ("both", "pair * 8"),
        ("name", "c_char * 16"),
        ("next", "c_void_p"),
        ("last", "c_int32"),
    ]
    assert header.functions == {
        "text": ("c_char_p", ["c_int32"]),
        "none": ("c_void_p", []),
        "fill": ("c_int32", ["c_void_p", "c_char_p", "c_uint64", "c_void_p"]),
        "drop": ("None", ["c_void_p"]),
    }
    names = {}
    exec(header.module(), names)
    assert ctypes.sizeof(names["thing"]) == 8 + 16 + 8 * 16 + 16 + 8 + 8


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no cdef marks"),
        ("\n/* cdef:begin */\nwidget f(void);\n/* cdef:end */\n", "unknown type widget in: widget f"),
        ("\n/* cdef:begin */\nint f(void)\n/* cdef:end */\n", "no ; behind: int f"),
        ("\n/* cdef:begin */\nint (*f)(void);\n/* cdef:end */\n", "cannot read the declaration"),
        ("\n/* cdef:begin */\nenum { A = sizeof(int) };\n/* cdef:end */\n", "cannot read the number"),
    ],
)
def test_header_that_cannot_be_read(text, reason):
    with pytest.raises(abi.HeaderError, match=reason):
        abi.Header(text)


def test_cksum_is_posix():
    assert abi.cksum(b"") == 4294967295 and abi.cksum(b"123456789") == 930766865


def test_declarations_are_those_of_the_library():
    assert _library.lib.fh_header_checksum() == _abi.CHECKSUM
    for name, struct in _abi.STRUCTS.items():
        assert _library.lib.fh_struct_bytes(name.encode()) == ctypes.sizeof(struct), name
    call = _abi.fh_call()
    _library.check(_library.lib.fh_call_init(ctypes.byref(call), ctypes.sizeof(call), 2, 3, 5, 576, 7))
    assert (call.s_q, call.s_kv, call.h_q, call.d_qk, call.topk, call.d_v, call.path) == (2, 3, 5, 576, 7, 512, 0)
    assert (call.q_stride_s, call.q_stride_h, call.kv_stride, call.indices_stride, call.out_stride_s) == (2880, 576, 576, 7, 2560)


# ---- The wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return package.wheel(str(tmp_path_factory.mktemp("wheel")), LIBRARY)


def test_tag_is_the_highest_glibc_that_the_library_names(built):
    symbols = subprocess.run(["objdump", "-T", LIBRARY], check=True, capture_output=True, text=True).stdout
    highest = max(tuple(map(int, pair)) for pair in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))
    version = package.version()
    assert os.path.basename(built) == f"fewhead-{version}-py3-none-manylinux_{highest[0]}_{highest[1]}_{os.uname().machine}.whl"
    assert fewhead.__version__ == version


def test_newest_glibc():
    assert package.newest_glibc("(GLIBC_2.2.5) a\n(GLIBC_2.34) b\n(GLIBC_2.4) c\n(GLIBC_PRIVATE) d") == (2, 34)
    with pytest.raises(package.BuildError, match="names no GLIBC version"):
        package.newest_glibc("")


def test_foreign_libraries():
    assert package.foreign_libraries("  NEEDED  libm.so.6\n  NEEDED  ld-linux-x86-64.so.2\n  NEEDED  libcudart.so.13\n") == [
        "libcudart.so.13"
    ]


def test_record_and_bytes(built, tmp_path):
    with zipfile.ZipFile(built) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        info = f"fewhead-{package.version()}.dist-info"
        lines = archive.read(f"{info}/RECORD").decode().splitlines()
        assert {line.split(",")[0] for line in lines} == names
        for name, digest, size in (line.split(",") for line in lines):
            if name == f"{info}/RECORD":
                continue
            data = archive.read(name)
            assert int(size) == len(data)
            assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert {"fewhead/__init__.py", "fewhead/_abi.py", "fewhead/libfewhead.so"} < names
        assert b"Requires-Dist: torch>=2.8\n" in archive.read(f"{info}/METADATA")
    with open(built, "rb") as a, open(package.wheel(str(tmp_path), LIBRARY), "rb") as b:
        assert a.read() == b.read(), "the same inputs gave other bytes"


def test_installs_into_a_path_with_a_space(built, tmp_path):
    target = tmp_path / "a path with a space"
    done = pip("install", "--no-deps", "--no-index", "--target", target, built)
    assert done.returncode == 0, done.stdout
    status, printed = run(SELF_CHECK + "; print(fewhead.__file__)", path=target, FEWHEAD_LIB="")
    assert status == 0 and printed.split("\n")[:2] == [package.version(), str(target / "fewhead" / "__init__.py")]


def test_installs_from_the_folder(tmp_path):
    done = pip("install", "--no-deps", "--no-index", "--target", tmp_path, package.HERE, FEWHEAD_LIB=LIBRARY)
    assert done.returncode == 0, done.stdout
    status, printed = run(SELF_CHECK, path=tmp_path, FEWHEAD_LIB="")
    assert status == 0, printed


@pytest.mark.parametrize("platform", ["manylinux_2_17_aarch64", "manylinux_2_17_x86_64", "win_amd64"])
def test_pip_refuses_other_platforms(built, platform, tmp_path):
    done = pip("install", "--no-deps", "--no-index", "--only-binary=:all:", "--platform", platform, "--target", tmp_path, built)
    assert done.returncode != 0 and "is not a supported wheel on this platform" in done.stdout, done.stdout


def test_no_library_to_pack(tmp_path):
    with pytest.raises(package.BuildError, match="no library at .*: run make in the checkout first"):
        package.wheel(str(tmp_path), str(tmp_path / "libfewhead.so"))


# ---- Loading

OTHER = """
#include <stdint.h>
uint32_t fh_header_checksum(void) { return 1; }
int32_t fh_version(void) { return 100; }
uint64_t fh_struct_bytes(const char *name) { return 0; }
const char *fh_build_info(void) { return "fewhead 0.1.0, commit 0123456789ab"; }
"""


def test_library_of_another_version(tmp_path):
    other = compile_library(tmp_path / "libfewhead.so", OTHER)
    status, printed = run("import fewhead", FEWHEAD_LIB=other)
    assert status == 1
    assert (
        f"{other} was built from another fewhead.h: got version 100, header 1, wanted version {_abi.FH_VERSION}, "
        f"header {_abi.CHECKSUM}" in printed
    )


def test_two_libraries_in_one_process(tmp_path):
    other = compile_library(tmp_path / "libfewhead.so", OTHER)
    status, printed = run(f"import ctypes; ctypes.CDLL({str(other)!r}); import fewhead", FEWHEAD_LIB=LIBRARY)
    assert status == 1
    assert (
        f"this process already has another library: {other} (fewhead 0.1.0, commit 0123456789ab); wanted one version in a process"
        in printed
    )
    assert LIBRARY in printed


def test_a_second_copy_of_the_same_version(tmp_path):
    copy = tmp_path / "libfewhead.so.0"
    shutil.copyfile(LIBRARY, copy)
    status, printed = run(f"import ctypes; ctypes.CDLL({str(copy)!r}); {SELF_CHECK}", FEWHEAD_LIB=LIBRARY)
    assert status == 0, printed


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda path: None, "the library does not load: .*cannot open shared object file"),
        (lambda path: path.write_text("no library"), "the library does not load: .*(file too short|invalid ELF header)"),
        (lambda path: compile_library(path, "int f(void) { return 1; }"), "is no fewhead library: it has no fh_header_checksum"),
    ],
)
def test_what_is_no_library(make, reason, tmp_path):
    path = tmp_path / "libfewhead.so"
    make(path)
    status, printed = run("import fewhead", FEWHEAD_LIB=path)
    assert status == 1 and re.search(f"fewhead: .*{reason}", printed), printed


def test_mapped_libraries(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0-7f1 r-xp 0 fe:0 1   /a b/libfewhead.so\n7f1-7f2 r--p 0 fe:0 1   /a b/libfewhead.so\n"
        "7f3-7f4 r--p 0 fe:0 2   /c/libfewhead.so.0.2\n7f3-7f4 r--p 0 fe:0 3   /c/libfewhead_flashmla.so\n"
        "7f5-7f6 rw-p 0 00:0 0 [heap]\n"
    )
    assert _library.mapped_libraries(str(maps)) == ["/a b/libfewhead.so", "/c/libfewhead.so.0.2"]


# ---- PyTorch


@pytest.mark.parametrize(
    "version, reason", [("2.7.1", "got PyTorch 2.7.1, wanted 2.8 or later"), ("1.13.0+cpu", "got PyTorch 1.13.0")]
)
def test_old_pytorch(version, reason, tmp_path):
    (tmp_path / "torch.py").write_text(f"__version__ = {version!r}\n")
    status, printed = run("import fewhead", path=f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    assert status == 1 and reason in printed


def test_no_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError(\"No module named 'torch'\")\n")
    status, printed = run("import fewhead", path=f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    assert status == 1 and "fewhead wants PyTorch 2.8 or later in this Python: No module named 'torch'" in printed


# ---- The driver


@pytest.mark.parametrize(
    "toolkit, driver, problem",
    [
        ((13, 0), (13, 0), None),
        ((13, 1), (13, 0), None),
        ((13, 0), (14, 2), None),
        ((12, 9), (13, 0), None),
        (
            (13, 0),
            (11, 4),
            "CUDA: found a driver for CUDA 11.4, wanted a driver for CUDA 13.0 or newer: the library was built with CUDA 13.0",
        ),
        ((13, 0), None, "CUDA: found no driver (libcuda.so.1), wanted a driver for CUDA 13.0 or newer"),
        (None, (13, 0), "CUDA: this library was built without it; wanted a library built where nvcc is"),
    ],
)
def test_driver_problem(toolkit, driver, problem):
    assert _library.driver_problem(toolkit, driver) == problem


def test_toolkit_is_read_from_the_build(monkeypatch):
    for text, toolkit in (
        ("fewhead 0.2.0, commit 0, gcc 12.2.0, CUDA 13.0 (sm_80, sm_90a)", (13, 0)),
        ("fewhead 0.2.0, commit 0, gcc 12.2.0, without CUDA", None),
    ):
        monkeypatch.setattr(_library, "build_info", lambda text=text: text)
        assert _library.cuda_toolkit() == toolkit


def test_an_old_driver_is_named_and_the_cpu_works(tmp_path):
    """A libcuda that speaks of CUDA 11.4, before a library that was built with CUDA 13.0."""
    compile_library(tmp_path / "libcuda.so.1", "int cuDriverGetVersion(int *v) { *v = 11040; return 0; }")
    code = (
        "from fewhead import _library; _library.cuda_toolkit = lambda: (13, 0); print(_library.driver_version());"
        "from fewhead import __main__; raise SystemExit(__main__.main())"
    )
    status, printed = run(code, LD_LIBRARY_PATH=tmp_path)
    assert status == 0, printed
    assert printed.startswith("(11, 4)\n")
    assert (
        "CUDA: found a driver for CUDA 11.4, wanted a driver for CUDA 13.0 or newer: the library was built with CUDA 13.0\n"
        in printed
    )
    assert re.search(r"^cpu: .*; works$", printed, re.M)


def test_a_cuda_device_is_refused_in_one_line(monkeypatch):
    from fewhead import _devices

    monkeypatch.setattr(_devices, "cuda_toolkit", lambda: (13, 0))
    monkeypatch.setattr(_devices, "driver_version", lambda: (11, 4))
    monkeypatch.setattr(_devices, "_handles", {})
    with pytest.raises(
        RuntimeError, match=r"cuda:3: CUDA: found a driver for CUDA 11\.4, wanted a driver for CUDA 13\.0 or newer"
    ):
        fewhead.prepare("cuda:3")


def test_main_says_what_is_here():
    done = subprocess.run([sys.executable, "-m", "fewhead"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"fewhead {fewhead.__version__} (fewhead {fewhead.__version__}, commit ")
    assert f"library {LIBRARY}\n" in done.stdout and re.search(r"^cpu: .*paths auto, .*; works$", done.stdout, re.M)


def test_describe_and_prepare():
    fewhead.prepare("cpu")
    known = fewhead.describe("cpu")
    assert known["kind"] == _abi.FH_DEVICE_CPU and known["threads"] >= 1 and known["name"]
    assert set(known["paths"]) <= {"auto", "reference", "padded", "gather", "packed"}
    for name, exception, text in (
        ("mps", NotImplementedError, "device: got mps, wanted cpu or cuda"),
        ("gpu", ValueError, "device: got 'gpu', wanted cpu, cuda or cuda:N"),
        (None, TypeError, "device: got NoneType, wanted a str or a torch.device"),
    ):
        with pytest.raises(exception, match=text):
            fewhead.describe(name)
    with pytest.raises(ValueError, match=r"h_q: got 129, wanted 0 \.\. 128"):
        fewhead.describe("cpu", 129)
