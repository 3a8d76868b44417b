"""Installed, loaded, excluded, hidden: the entry point and the doctor."""
import os
import subprocess
import sys
import zipfile
from importlib import metadata

import package
import pytest


def doctor():
    from fewhead_vllm import __main__
    return __main__


def test_the_wheel_offers_the_entry_point(tmp_path):
    path = package.wheel(str(tmp_path))
    assert os.path.basename(path) == f"fewhead_vllm-{package.version()}-py3-none-any.whl"
    with zipfile.ZipFile(path) as z:
        names = z.namelist()
        assert z.read(f"fewhead_vllm-{package.version()}.dist-info/entry_points.txt") == (
            b"[vllm.general_plugins]\nfewhead = fewhead_vllm:register\n")
    assert "fewhead_vllm/_patch.py" in names and f"fewhead_vllm-{package.version()}.dist-info/RECORD" in names
    with open(path, "rb") as f:
        first = f.read()
    with open(package.wheel(str(tmp_path)), "rb") as f:
        assert f.read() == first


def test_vllm_finds_and_loads_a_staged_plug_in(tmp_path, monkeypatch):
    package.stage(str(tmp_path))
    found = [e for one in metadata.distributions(path=[str(tmp_path)]) for e in one.entry_points if e.group == "vllm.general_plugins"]
    assert [(e.name, e.value) for e in found] == [("fewhead", "fewhead_vllm:register")]
    assert callable(found[0].load())


def test_both_wheels_install_and_the_plug_in_is_loaded(tmp_path):
    """As docs/engine.md installs them: without dependencies or an index, in a folder where nothing else of fewhead is."""
    import fewhead
    import stub
    checkout = os.path.dirname(os.path.dirname(package.HERE))
    made, site = str(tmp_path / "wheel"), str(tmp_path / "site")
    library = os.path.join(os.path.dirname(fewhead.__file__), "libfewhead.so")
    subprocess.run([sys.executable, os.path.join(checkout, "engines", "python", "package.py"), "wheel", made, "--library", library], check=True)
    package.wheel(made)
    wheels = sorted(os.path.join(made, name) for name in os.listdir(made))
    assert len(wheels) == 2
    stub.build(site)
    words = ["install", "--no-deps", "--no-index", "--target", site, *wheels]
    pip = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], capture_output=True, text=True)
    assert pip.returncode == 0, pip.stdout + pip.stderr
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "FEWHEAD_"))}
    run = subprocess.run([sys.executable, "-m", "fewhead_vllm"], env={**environ, "PYTHONPATH": site}, cwd=tmp_path, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, run.stdout + run.stderr
    assert lines[0] == f"installed: fewhead-vllm {package.version()} in {site}" and "loads all plug-ins" in lines[1]
    assert lines[2].startswith("fewhead (vLLM 0.26.0): patched V3.2 and GLM, V4; rule auto; ")
    code = ("from importlib.metadata import entry_points; [one] = entry_points(group='vllm.general_plugins'); one.load()(); "
            "import fewhead, fewhead_vllm; print(fewhead.__file__); print(fewhead_vllm.stats()['patched'])")
    run = subprocess.run([sys.executable, "-c", code], env={**environ, "PYTHONPATH": site}, cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.splitlines() == [os.path.join(site, "fewhead", "__init__.py"), "['v32', 'v4']"], run.stdout + run.stderr


def test_the_doctor_says_installed(tmp_path):
    package.stage(str(tmp_path))
    assert doctor().installed([str(tmp_path)]) == (True, f"installed: fewhead-vllm {package.version()} in {tmp_path}")


def test_the_doctor_says_not_installed(tmp_path):
    good, line = doctor().installed([str(tmp_path)])
    assert not good and line.startswith("not installed: no metadata of fewhead-vllm on the path")


def stale(folder):
    info = folder / "fewhead_vllm.egg-info"
    info.mkdir(parents=True)
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: fewhead-vllm\nVersion: 0.0.1\n")


def test_the_doctor_names_old_metadata_that_hides_the_entry_point(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    stale(old)
    package.stage(str(new))
    good, line = doctor().installed([str(old), str(new)])
    assert not good and line == (f"hidden: fewhead-vllm 0.0.1 in {old} comes first on the path and offers no entry point vllm.general_plugins "
                                 f"fewhead; it hides {package.version()} in {new}. Remove the former")
    assert doctor().installed([str(new), str(old)])[0]
    assert doctor().installed([str(old)])[1].startswith("no entry point: ")


@pytest.mark.parametrize("value, loads", [(None, True), ("fewhead", True), ("a,fewhead", True), ("", False), ("fewhed", False), ("other", False)])
def test_the_doctor_reads_vllm_plugins(value, loads):
    good, line = doctor().allowed({} if value is None else {"VLLM_PLUGINS": value})
    assert good == loads
    if not loads:
        assert line == f"installed, but VLLM_PLUGINS excludes it: got {value!r}, wanted a list with fewhead, or the variable unset"


def test_the_doctor_as_a_program(engine, tmp_path):
    import stub
    site = tmp_path / "site"
    stub.build(str(site), "0.99.0")
    package.stage(str(site))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]), "VLLM_PLUGINS": "other"}
    run = subprocess.run([sys.executable, "-m", "fewhead_vllm"], env=environ, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert run.returncode == 1 and lines[0].startswith("installed: fewhead-vllm") and "VLLM_PLUGINS excludes it: got 'other'" in lines[1]
    assert lines[2] == ("fewhead (vLLM 0.99.0): patched nothing; not patched V3.2 and GLM, V4, V4.1: vLLM: found version 0.99.0, looked for "
                        "0.24 to 0.33")
