"""Builds the Python package: a folder to import from, or a wheel. Also the build back end that pip calls (pyproject.toml).

    python3 package.py stage FOLDER    FOLDER/fewhead: the package, the generated _abi.py and the library; FOLDER goes on
    PYTHONPATH python3 package.py wheel FOLDER    FOLDER/fewhead-VERSION-py3-none-PLATFORM.whl, of the same files

Both take the library that --library names, FEWHEAD_LIB, or build/libfewhead.so of the checkout; `make` builds it. Python 3.9 or
newer and objdump (binutils) are needed, nothing else: the package compiles nothing.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)  # pip imports this file from another folder
import abi  # noqa: E402

CHECKOUT = os.path.dirname(os.path.dirname(HERE))
HEADER = os.path.join(CHECKOUT, "lib", "include", "fewhead.h")
LIBRARY_NAME = "libfewhead.so"
MIN_TORCH = "2.8"

# Libraries of the C library's own family: every Linux with the glibc of the tag has them.
SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|librt|libpthread)\.so\.\d+|ld-linux[-\w]*\.so\.\d+")


class BuildError(Exception):
    """What keeps the package from being built, in one line."""


def library_path(given=None):
    """The library to pack: the path given, FEWHEAD_LIB, or the checkout's."""
    path = given or os.environ.get("FEWHEAD_LIB") or os.path.join(CHECKOUT, "build", LIBRARY_NAME)
    if not os.path.isfile(path):
        raise BuildError(f"no library at {path}: run make in the checkout first, or set FEWHEAD_LIB")
    return path


def version():
    """ "0.2.0", from FH_VERSION of the header."""
    with open(HEADER, encoding="utf-8") as f:
        number = abi.Header(f.read()).constants["FH_VERSION"]
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


# ---- The platform tag


def objdump(option, library):
    try:
        return subprocess.run(["objdump", option, library], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise BuildError("no objdump here, which tells the glibc that the library needs: install binutils") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"objdump {option} {library}: {error.stderr.strip()}") from None


def newest_glibc(symbols):
    """(2, 34): the highest GLIBC_ version in what objdump -T prints."""
    found = [(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", symbols)]
    if not found:
        raise BuildError("the library names no GLIBC version: wanted a shared library for Linux with glibc")
    return max(found)


def foreign_libraries(headers):
    """The libraries that objdump -p calls NEEDED and that do not come with glibc."""
    return [name for name in re.findall(r"NEEDED\s+(\S+)", headers) if not SYSTEM_LIBRARIES.fullmatch(name)]


def platform_tag(library):
    """ "manylinux_2_34_x86_64": the oldest platform whose glibc has every symbol that the library asks for."""
    foreign = foreign_libraries(objdump("-p", library))
    if foreign:
        raise BuildError(f"{library} needs {', '.join(foreign)}, which not every Linux has: wanted glibc's libraries alone")
    major, minor = newest_glibc(objdump("-T", library))
    return f"manylinux_{major}_{minor}_{platform.machine()}"


# ---- The files


def stage(folder, library=None):
    """Make FOLDER/fewhead. What is there already is replaced."""
    library = library_path(library)
    package = os.path.join(folder, "fewhead")
    os.makedirs(folder, exist_ok=True)
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(
        os.path.join(HERE, "src", "fewhead"), package, ignore=shutil.ignore_patterns("__pycache__", "_abi.py", "*.so")
    )
    abi.generate(HEADER, os.path.join(package, "_abi.py"))
    shutil.copyfile(library, os.path.join(package, LIBRARY_NAME))
    return package


def metadata():
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    return (
        f"Metadata-Version: 2.1\nName: fewhead\nVersion: {version()}\n"
        "License: MIT\nSummary: Sparse MLA prefill for few query heads: FlashMLA's flash_mla_sparse_fwd for 1 to 128 heads\n"
        f"Requires-Python: >=3.9\nRequires-Dist: torch>={MIN_TORCH}\nDescription-Content-Type: text/markdown\n\n{readme}"
    )


def add(archive, name, data, record):
    """Add a file without the time and the owner of its making, and its line of RECORD."""
    info = zipfile.ZipInfo(name)
    info.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record.append(f"{name},sha256={digest},{len(data)}")


def wheel(folder, library=None):
    """Write the wheel; its path. The same inputs make the same bytes."""
    library = library_path(library)
    tag = f"py3-none-{platform_tag(library)}"
    info = f"fewhead-{version()}.dist-info"
    path = os.path.join(folder, f"fewhead-{version()}-{tag}.whl")
    os.makedirs(folder, exist_ok=True)
    record = []
    with tempfile.TemporaryDirectory() as staged, zipfile.ZipFile(path + ".part", "w") as archive:
        package = stage(staged, library)
        for name in sorted(os.listdir(package)):
            with open(os.path.join(package, name), "rb") as f:
                add(archive, f"fewhead/{name}", f.read(), record)
        add(archive, f"{info}/METADATA", metadata().encode(), record)
        with open(os.path.join(CHECKOUT, "LICENSE"), "rb") as f:
            add(archive, f"{info}/LICENSE", f.read(), record)
        add(
            archive,
            f"{info}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: fewhead\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
            record,
        )
        lines = "\n".join(record + [f"{info}/RECORD,,", ""])
        add(archive, f"{info}/RECORD", lines.encode(), record)
    os.replace(path + ".part", path)
    return path


# ---- What pip calls (PEP 517)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return os.path.basename(wheel(wheel_directory))


def build_sdist(sdist_directory, config_settings=None):
    raise BuildError("no source distribution: the library is built by make in a checkout")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stage", "wheel"))
    parser.add_argument("folder")
    parser.add_argument("--library", help="the libfewhead.so to pack")
    args = parser.parse_args()
    try:
        print({"stage": stage, "wheel": wheel}[args.what](args.folder, args.library))
    except (BuildError, abi.HeaderError, OSError) as error:
        sys.exit(f"package.py: {error}")


if __name__ == "__main__":
    main()
