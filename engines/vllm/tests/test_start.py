"""What is patched, what not, and what the line says."""
import pytest

WANTED = "looked for 0.24 to 0.33"


def line_of(engine, caplog):
    return engine.plugin.stats()["line"]


@pytest.mark.parametrize("version, variant, families", [
    ("0.24.0", "plain", ["v32", "v4"]), ("0.26.0", "plain", ["v32", "v4"]), ("0.26.1.dev3+gabc", "plain", ["v32", "v4"]),
    ("0.33.0", "0.33", ["v32", "v4", "v41"]), ("0.26.0", "pair", ["v32", "v4"]),
])
def test_known_versions_are_patched_whole(engine, version, variant, families):
    stats = engine.start(version, variant)
    assert stats["patched"] == families and stats["vllm"] == version and stats["rule"] == "rule auto"
    assert stats["line"].startswith(f"fewhead (vLLM {version}): patched V3.2 and GLM, V4")


@pytest.mark.parametrize("version", ["0.23.0", "0.99.0", "1.0", "dev"])
def test_unknown_versions_are_declined(engine, version, caplog):
    stats = engine.start(version)
    assert stats["patched"] == [] and set(stats["not_patched"].values()) == {f"vLLM: found version {version}, {WANTED}"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].getMessage() == (f"fewhead (vLLM {version}): patched nothing; not patched V3.2 and GLM, V4, V4.1: vLLM: found "
                                              f"version {version}, {WANTED}")
    import vllm.platforms.cuda as platform
    assert [b.name for b in platform._get_backend_priorities(True, None, 8)][1] == "FLASH_ATTN_MLA_SPARSE"


@pytest.mark.parametrize("variant, family, reason", [
    ("kernel renamed", "v32", "looked for vllm.v1.attention.backends.mla.flashmla_sparse.FlashMLASparseImpl._bf16_flash_mla_kernel, found none"),
    ("one more keyword", "v32", "found (self, q, kv_c_and_k_pe_cache, topk_indices, topk_length=None, scale_dtype=None), looked for (self, q, "),
    ("one more positional", "v32", "found (self, layer, q, kv_c_and_k_pe_cache, topk_indices, topk_length=None), looked for"),
    ("no annotation", "v32", "found no return annotation, looked for torch.Tensor or tuple[torch.Tensor, torch.Tensor]"),
    ("prefill renamed", "v4", "DeepseekV4FlashMLAAttention._forward_prefill, found none"),
    ("combine with one more keyword", "v4", "combine_topk_swa_indices: found (topk_indices, query_start_loc, seq_lens, gather_lens, "),
])
def test_a_family_is_patched_whole_or_not_at_all(engine, variant, family, reason):
    stats = engine.start("0.26.0", variant)
    assert reason in stats["not_patched"][family] and family not in stats["patched"]
    assert stats["patched"] == [{"v32": "v4", "v4": "v32"}[family]]
    module = {"v32": engine.sparse, "v4": engine.v4}[family]
    names = [module.flash_mla_sparse_fwd] + [value for value in vars(engine.sparse.FlashMLASparseImpl).values() if family == "v32"]
    assert not any(hasattr(function, "fewhead_original") for function in names)


def test_an_operator_with_another_signature_is_in_no_family(engine):
    stats = engine.start("0.26.0", "operator with one more keyword")
    assert stats["patched"] == [] and "found (q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None, lse_base=2)" in (
        stats["not_patched"]["v32"])


def test_a_missing_module_is_named(engine):
    stats = engine.start("0.26.0", without=("vllm.models.deepseek_v4.nvidia.flashmla",))
    assert stats["patched"] == ["v32"]
    assert stats["not_patched"]["v4"].startswith("looked for vllm.models.deepseek_v4.nvidia.flashmla, found ModuleNotFoundError")


def test_v41_is_said_to_be_newer(engine):
    assert engine.start("0.26.0")["not_patched"] == {"v41": "vLLM 0.26.0 does not have these models, 0.33 does"}


def test_a_missing_library_leaves_the_engine_alone(engine, monkeypatch, caplog):
    import sys
    monkeypatch.setitem(sys.modules, "fewhead", None)  # import raises ImportError, as a library that does not load
    stats = engine.start("0.26.0")
    assert stats["patched"] == [] and stats["not_patched"]["v32"].startswith("looked for fewhead, found ModuleNotFoundError")
    assert not hasattr(engine.sparse.FlashMLASparseImpl._bf16_flash_mla_kernel, "fewhead_original")
    assert "patched nothing" in caplog.text


def test_registering_twice_does_nothing(engine, caplog):
    engine.start("0.26.0")
    kernel = engine.sparse.FlashMLASparseImpl._bf16_flash_mla_kernel
    engine.plugin.register()
    assert engine.sparse.FlashMLASparseImpl._bf16_flash_mla_kernel is kernel and len(caplog.records) == 1


# ---- Rules


@pytest.mark.parametrize("environ, rule", [
    ({}, "rule auto"),
    ({"VLLM_DSV41_FEWHEAD_PREFILL": "1"}, "rule gate: native heads (path gather) from s_q 2048 on"),
    ({"VLLM_DSV41_FEWHEAD_MIN_SQ": "0"}, "rule gate: native heads (path gather) from s_q 0 on"),
    ({"VLLM_DSV41_FEWHEAD_MIN_SQ": "512"}, "rule gate: native heads (path gather) from s_q 512 on"),
    ({"VLLM_DSV41_FEWHEAD_PREFILL": "0"}, "rule off"),
    ({"VLLM_DSV41_FEWHEAD_PREFILL": "off", "VLLM_DSV41_FEWHEAD_MIN_SQ": "0"}, "rule off"),
])
def test_the_rule(engine, monkeypatch, environ, rule):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stats = engine.start("0.26.0")
    assert stats["rule"] == rule and rule in stats["line"]
    assert (stats["patched"] == []) == (rule == "rule off")


@pytest.mark.parametrize("name, value, warning", [
    ("VLLM_DSV41_FEWHEAD_MINSQ", "0", "VLLM_DSV41_FEWHEAD_MINSQ: no such setting, ignored; did you mean VLLM_DSV41_FEWHEAD_MIN_SQ?"),
    ("VLLM_DSV41_FEWHEAD_MIN_SQ", "abc", 'VLLM_DSV41_FEWHEAD_MIN_SQ: got "abc", wanted a whole number >= 0; using 2048'),
    ("FEWHEAD_CHECKS", "1", "FEWHEAD_CHECKS: no such setting, ignored; did you mean FEWHEAD_CHECK?"),
    ("FEWHEAD_CHECK", "2/3", "FEWHEAD_CHECK: got '2/3', wanted a share such as 1/1000; comparing no calls"),
    ("FEWHEAD_CAPTURE_LAYERS", "a", "FEWHEAD_CAPTURE_LAYERS: got 'a', wanted numbers such as 0,3,41; capturing all layers"),
    ("FEWHEAD_CAPTURE_MB", "0", "FEWHEAD_CAPTURE_MB: got '0', wanted a whole number >= 1; using 256"),
])
def test_settings_that_are_not_understood_are_named(engine, monkeypatch, caplog, name, value, warning):
    monkeypatch.setenv(name, value)
    stats = engine.start("0.26.0")
    assert stats["warnings"] == [warning] and warning in caplog.text and stats["patched"] == ["v32", "v4"]


# ---- The choice of backend


def order(heads):
    import vllm.platforms.cuda as platform
    return [backend.name for backend in platform._get_backend_priorities(True, None, num_heads=heads)]


def test_fa3_sparse_comes_behind_the_patched_backend_where_heads_are_padded(engine):
    line = engine.start("0.26.0")["line"]
    assert "FLASHMLA_SPARSE before FLASH_ATTN_MLA_SPARSE where vLLM chooses and heads are padded" in line
    moved, kept = ["FLASH_ATTN_MLA", "FLASHMLA_SPARSE", "FLASH_ATTN_MLA_SPARSE"], ["FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"]
    assert order(8) == moved and order(None) == moved and order(64) == kept and order(128) == kept


def test_backends_stay_where_the_family_is_not_patched_or_the_rule_is_off(engine, monkeypatch):
    engine.start("0.26.0", "kernel renamed")
    assert order(8)[1] == "FLASH_ATTN_MLA_SPARSE"


def test_an_unknown_platform_is_said(engine):
    line = engine.start("0.26.0", without=("vllm.platforms.cuda",))["line"]
    assert "backend choice left as it is: looked for vllm.platforms.cuda, found ModuleNotFoundError" in line
