"""Builds the plug-in: a folder to import from, or a wheel. Also the build back end that pip calls (pyproject.toml).

    python3 package.py stage FOLDER    FOLDER/fewhead_vllm and its metadata, by which vLLM finds it; FOLDER goes on PYTHONPATH
    python3 package.py wheel FOLDER    FOLDER/fewhead_vllm-VERSION-py3-none-any.whl, of the same files

Python 3.9 or newer, nothing else. The same inputs make the same bytes.
"""
import argparse
import base64
import hashlib
import os
import re
import shutil
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "src", "fewhead_vllm")
ENTRY_POINTS = "[vllm.general_plugins]\nfewhead = fewhead_vllm:register\n"


def version():
    with open(os.path.join(SOURCE, "__init__.py"), encoding="utf-8") as f:
        return re.search(r'__version__ = "(.*)"', f.read())[1]


def files():
    """{path in the wheel: bytes}, but for RECORD."""
    made = {}
    for name in sorted(os.listdir(SOURCE)):
        if name.endswith(".py"):
            with open(os.path.join(SOURCE, name), "rb") as f:
                made[f"fewhead_vllm/{name}"] = f.read()
    info = f"fewhead_vllm-{version()}.dist-info"
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    made[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: fewhead-vllm\nVersion: {version()}\nSummary: vLLM's sparse MLA prefill on fewhead\n"
        f"Requires-Python: >=3.9\nRequires-Dist: fewhead\nDescription-Content-Type: text/markdown\n\n{readme}").encode()
    made[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: fewhead\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    made[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    lines = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
             for name, data in made.items()]
    made[f"{info}/RECORD"] = "\n".join(lines + [f"{info}/RECORD,,", ""]).encode()
    return made


def stage(folder):
    """Write the files into a folder. What is there of the plug-in already is replaced."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name == "fewhead_vllm" or re.fullmatch(r"fewhead_vllm-.*\.dist-info", name):
            shutil.rmtree(os.path.join(folder, name))
    for name, data in files().items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
    return folder


def wheel(folder):
    """Write the wheel; its path."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"fewhead_vllm-{version()}-py3-none-any.whl")
    with zipfile.ZipFile(path + ".part", "w") as archive:
        for name, data in files().items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    os.replace(path + ".part", path)
    return path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return os.path.basename(wheel(wheel_directory))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stage", "wheel"))
    parser.add_argument("folder")
    args = parser.parse_args()
    try:
        print({"stage": stage, "wheel": wheel}[args.what](args.folder))
    except OSError as error:
        sys.exit(f"package.py: {error}")


if __name__ == "__main__":
    main()
