"""The registered operators: the same results, the fake implementations, torch.compile in one graph."""

import pytest
import torch

import fewhead
from tools import call, compare, small, wanted

CPU = torch.device("cpu")
OPERATOR = torch.ops.fewhead.flash_mla_sparse_fwd
ORDER = ("q", "kv", "indices", "sm_scale")


def operator(arguments, **options):
    """The operator with d_v and the optional tensors by place."""
    return OPERATOR(
        *(arguments[name] for name in ORDER), 512, arguments.get("attn_sink"), arguments.get("topk_length"), **options
    )


def test_same_bits_as_the_plain_function(device):
    arguments = small(device)
    for path in ("auto", "gather"):
        assert all(torch.equal(a, b) for a, b in zip(operator(arguments, path=path), call(arguments, path=path)))


def test_out(device):
    arguments = small(device)
    out = torch.full((5, 64, 512), 7.0, dtype=torch.bfloat16, device=device)
    max_logits, lse = torch.ops.fewhead.flash_mla_sparse_fwd_out(
        *(arguments[name] for name in ORDER), 512, arguments["attn_sink"], arguments["topk_length"], output=out[:, :8]
    )
    compare((out[:, :8], max_logits, lse), wanted(arguments))
    assert (out[:, 8:] == 7).all()


def test_plan_and_costs(device):
    if "packed" not in fewhead.describe(device)["paths"]:
        pytest.skip("no packed path on this device")
    arguments = small(device, s_q=40)
    plan = fewhead.Plan(arguments["indices"], s_kv=40, h_q=8, topk_length=arguments["topk_length"], path="packed")
    got = operator(arguments, path="packed", plan=plan.memory)
    assert all(torch.equal(a, b) for a, b in zip(got, call(arguments, path="packed", plan=plan)))
    moved = plan.memory.clone()  # a plan is where its memory is
    del plan
    assert all(torch.equal(a, b) for a, b in zip(got, operator(arguments, path="packed", plan=moved)))
    compare(operator(arguments, costs=[number for cost in fewhead.default_costs(device) for number in cost]), wanted(arguments))


@pytest.mark.parametrize(
    "options, exception, text",
    [
        ({"path": "fast"}, ValueError, "path: got 'fast'"),
        ({"costs": [1.0]}, ValueError, "costs: got 1 numbers, wanted 12"),
        ({"plan": torch.zeros(9, dtype=torch.uint8)}, ValueError, "plan: got memory of no plan of this call's sizes"),
        ({"plan": torch.zeros(9)}, TypeError, "plan: got torch.float32, wanted the memory of a fewhead.Plan"),
    ],
)
def test_refused(options, exception, text):
    with pytest.raises(exception, match=text):
        operator(small(CPU), **options)


def test_memory_that_is_too_small_for_its_plan():
    arguments = small(CPU, s_q=24)
    plan = fewhead.Plan(arguments["indices"], s_kv=40, h_q=8, topk_length=arguments["topk_length"], path="packed")
    with pytest.raises(ValueError, match=r"plan: got \d+ bytes at .*, wanted \d+"):
        operator(arguments, path="packed", plan=plan.memory[:64])


def test_gradients():
    arguments = small(CPU)
    arguments["q"] = arguments["q"].clone().requires_grad_()
    with pytest.raises(ValueError, match="q: got a tensor that requires grad"):
        operator(arguments)
    with torch.no_grad():
        compare(operator(arguments), wanted(arguments))


def test_meta_tensors_take_the_fake_implementation():
    arguments = {name: t.to("meta") if isinstance(t, torch.Tensor) else t for name, t in small(CPU).items()}
    out, max_logits, lse = operator(arguments)
    assert out.is_meta and out.shape == (5, 8, 512) and out.dtype == torch.bfloat16
    assert max_logits.shape == lse.shape == (5, 8) and lse.dtype == torch.float32


def test_opcheck():
    """PyTorch's own checks of an operator: schema, fake implementation, tracing with fixed and with changing sizes."""
    arguments = small(CPU)
    arguments["q"] = arguments["q"].contiguous()
    positional = tuple(arguments[name] for name in ORDER) + (512, arguments["attn_sink"], arguments["topk_length"])
    torch.library.opcheck(OPERATOR.default, positional, {"path": "gather"})
    out = torch.zeros(5, 8, 512, dtype=torch.bfloat16)
    torch.library.opcheck(torch.ops.fewhead.flash_mla_sparse_fwd_out.default, positional, {"output": out, "path": "gather"})


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_in_one_graph(device, dynamic):
    """The plain function inside of a compiled one: no graph break, with and without out, at several sizes."""

    def layer(q, kv, indices, sm_scale, attn_sink, topk_length, out):
        new = fewhead.flash_mla_sparse_fwd(q * 2, kv, indices, sm_scale, attn_sink=attn_sink, topk_length=topk_length)
        fewhead.flash_mla_sparse_fwd(
            q, kv, indices, sm_scale, attn_sink=attn_sink, topk_length=topk_length, out=out, path="gather"
        )
        return new[0] + out, new[1], new[2]

    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for s_q in (5, 9, 17):
        arguments = small(device, s_q=s_q)
        outs = [torch.zeros(s_q, 8, 512, dtype=torch.bfloat16, device=device) for _ in range(2)]
        with torch.no_grad():
            got = compiled(**arguments, out=outs[0])
            want = layer(**arguments, out=outs[1])
        assert all(torch.equal(a, b) for a, b in zip(got, want)) and torch.equal(*outs)


def test_compile_with_a_plan(device):
    if "packed" not in fewhead.describe(device)["paths"]:
        pytest.skip("no packed path on this device")
    arguments = small(device, s_q=24)
    plan = fewhead.Plan(arguments["indices"], s_kv=40, h_q=8, topk_length=arguments["topk_length"], path="packed")
    compiled = torch.compile(
        lambda q, plan: fewhead.flash_mla_sparse_fwd(**dict(arguments, q=q), path="packed", plan=plan),
        fullgraph=True,
        backend="aot_eager",
    )
    with torch.no_grad():
        compare(compiled(arguments["q"], plan), wanted(arguments))
