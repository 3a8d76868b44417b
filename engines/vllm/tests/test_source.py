"""The names and signatures in vLLM's own source. FEWHEAD_VLLM_SOURCE names folders of unpacked wheels, with a colon between them; without it
these tests are skipped. The source is parsed, not imported."""
import ast
import os
import re

import pytest
from fewhead_vllm import _targets as targets

SOURCES = [folder for folder in os.environ.get("FEWHEAD_VLLM_SOURCE", "").split(":") if folder]


def version(folder):
    for name in os.listdir(folder):
        found = re.fullmatch(r"vllm-(.+)\.dist-info", name)
        if found:
            return found[1]
    raise AssertionError(f"{folder}: no vllm-*.dist-info")


def tree(folder, module):
    with open(os.path.join(folder, *module.split(".")) + ".py", encoding="utf-8") as f:
        return ast.parse(f.read())


def find(body, path):
    """The node of "Class.method" or "name"; None where it is not defined there."""
    name, _, rest = path.partition(".")
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return find(node.body, rest) if rest else node
    return None


def signature(node):
    given = node.args
    assert not (given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs)
    defaults = [targets.REQUIRED] * (len(given.args) - len(given.defaults)) + [ast.literal_eval(value) for value in given.defaults]
    return tuple(zip((arg.arg for arg in given.args), defaults))


def imported_from(module, name):
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module
    return None


@pytest.mark.skipif(not SOURCES, reason="not run here: FEWHEAD_VLLM_SOURCE names no folder of an unpacked vLLM wheel")
@pytest.mark.parametrize("folder", SOURCES)
@pytest.mark.parametrize("family", targets.FAMILIES, ids=lambda family: family.name)
def test_targets(folder, family):
    found = version(folder)
    targets.check_version(found)
    if family.since and targets.version_numbers(found) < family.since:
        assert not os.path.exists(os.path.join(folder, *family.module.split(".")) + ".py")
        return
    module = tree(folder, family.module)
    for target in family.targets:
        node = find(module.body, target.path)
        if node is None:  # a name that the module binds
            assert imported_from(module, target.path), f"{family.module} binds no {target.path}"
            if target is targets.OPERATOR:
                source = tree(folder, "vllm.third_party.flashmla.flash_mla_interface")
            else:
                source = tree(folder, imported_from(module, target.path) + ".cache_utils")
            node = find(source.body, target.path)
        assert signature(node) in target.signatures, f"{target.path}: {targets.show(signature(node))}"


@pytest.mark.skipif(not SOURCES, reason="not run here: FEWHEAD_VLLM_SOURCE names no folder of an unpacked vLLM wheel")
@pytest.mark.parametrize("folder", SOURCES)
def test_what_else_the_patch_relies_on(folder):
    kernel = find(tree(folder, targets.V32_MODULE).body, targets.KERNEL)
    pair = "tuple" in ast.unparse(kernel.returns)
    assert pair == (targets.version_numbers(version(folder)) >= (0, 33))
    order = find(tree(folder, targets.PLATFORM).body, targets.PRIORITIES)
    assert [arg.arg for arg in order.args.args][:4] == ["use_mla", "device_capability", "num_heads", "kv_cache_dtype"]
    text = ast.unparse(order)
    if targets.FA3 + "," in text:  # 0.24 has no such backend
        assert 0 < text.index(f"AttentionBackendEnum.{targets.FA3},") < text.rindex(f"AttentionBackendEnum.{targets.FLASHMLA}")
    init = find(tree(folder, targets.V32_MODULE).body, f"{targets.V32_CLASS}.__init__")
    names = [arg.arg for arg in init.args.args]
    assert "indexer" in names and "topk_indices_buffer" in names
    for family in targets.FAMILIES[1:]:
        if family.since and targets.version_numbers(version(folder)) < family.since:
            continue
        assert imported_from(tree(folder, family.module), "get_forward_context") == "vllm.forward_context"
        layer = ast.unparse(tree(folder, family.module.replace(".nvidia.flashmla", ".attention")))
        assert "self.n_local_heads =" in layer and "self.indexer = None" in layer
        assert ("self.is_index_source =" in layer) == (family.name == "v41")
