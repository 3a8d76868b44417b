"""Every wrong argument: the exception, and the line that names what was given and what was wanted; nothing is written."""

import ctypes
import math
import mmap
import re

import numpy
import pytest
import torch

import fewhead
from tools import call, compare, small, wanted

CPU = torch.device("cpu")
CANARY = 0x7FC1


def canary(s_q=5, h_q=8):
    return torch.full((s_q, h_q, 512), CANARY, dtype=torch.int16).view(torch.bfloat16)


def with_(**changes):
    """The arguments of a good call, some of them replaced; a function is applied to the good one."""
    arguments = small(CPU)
    for name, value in changes.items():
        arguments[name] = value(arguments.get(name)) if callable(value) else value
    return arguments


class Fraction512:
    """No number at all, though it has an int."""

    def __int__(self):
        return 512


WRONG = [
    # name of the argument, what is passed, the exception, its text
    ("q", None, TypeError, "q: got NoneType, wanted a torch.Tensor"),
    ("q", lambda t: t.float(), TypeError, "q: got torch.float32, wanted torch.bfloat16"),
    ("q", lambda t: t[0], ValueError, r"q: got shape \[8, 512\], wanted \[s_q, h_q, 512 or 576\]"),
    ("q", lambda t: t[..., :500], ValueError, r"q: got shape \[5, 8, 500\], wanted \[s_q, h_q, 512 or 576\]"),
    ("q", lambda t: t[:, :0], ValueError, r"h_q: got 0, wanted 1 \.\. 128"),
    ("q", lambda t: t[:, :1].expand(5, 129, 512), ValueError, r"h_q: got 129, wanted 1 \.\. 128"),
    ("q", lambda t: t[:, :1].expand(5, 2**32 + 8, 512), ValueError, r"h_q: got 4294967304, wanted 1 \.\. 128"),
    ("q", lambda t: t.to("meta"), TypeError, "q: got a meta tensor"),
    ("q", lambda t: t.to_sparse(), TypeError, "q: got Tensor of layout torch.sparse_coo, wanted a plain strided tensor"),
    (
        "q",
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        ValueError,
        "q: got stride 8 in the last dimension, wanted 1",
    ),
    ("q", lambda t: t.detach().clone().requires_grad_(), ValueError, "q: got a tensor that requires grad"),
    ("kv", lambda t: t[:, 0], ValueError, r"kv: got shape \[40, 512\], wanted \[s_kv, 1, 512\]"),
    ("kv", lambda t: t.expand(40, 2, 512), ValueError, r"kv: got shape \[40, 2, 512\], wanted \[s_kv, 1, 512\]"),
    ("kv", lambda t: torch.zeros(40, 1, 576, dtype=torch.bfloat16), ValueError, r"kv: got shape \[40, 1, 576\]"),
    ("kv", lambda t: t.half(), TypeError, "kv: got torch.float16, wanted torch.bfloat16"),
    ("indices", lambda t: t.long(), TypeError, "indices: got torch.int64, wanted torch.int32"),
    ("indices", lambda t: t.tolist(), TypeError, "indices: got list, wanted a torch.Tensor"),
    ("indices", lambda t: t[:, 0], ValueError, r"indices: got shape \[5, 12\], wanted \[5, 1, topk\]"),
    ("indices", lambda t: t[:4], ValueError, r"indices: got shape \[4, 1, 12\], wanted \[5, 1, topk\]"),
    ("indices", lambda t: t[..., ::2], ValueError, "indices: got stride 2 in the last dimension, wanted 1"),
    ("topk_length", lambda t: t[:4], ValueError, r"topk_length: got shape \[4\], wanted \[5\]"),
    ("topk_length", lambda t: t.long(), TypeError, "topk_length: got torch.int64, wanted torch.int32"),
    (
        "topk_length",
        lambda t: t.repeat_interleave(2)[::2],
        ValueError,
        "topk_length: got stride 2 in the last dimension, wanted 1",
    ),
    ("topk_length", 7, TypeError, "topk_length: got int, wanted a torch.Tensor"),
    ("attn_sink", lambda t: t[:7], ValueError, r"attn_sink: got shape \[7\], wanted \[8\]"),
    ("attn_sink", lambda t: t.double(), TypeError, "attn_sink: got torch.float64, wanted torch.float32"),
    ("sm_scale", "0.5", TypeError, "sm_scale: got str, wanted a float"),
    ("sm_scale", True, TypeError, "sm_scale: got bool, wanted a float"),
    ("sm_scale", torch.tensor(0.5), TypeError, "sm_scale: got Tensor, wanted a float"),
    ("sm_scale", None, TypeError, "sm_scale: got NoneType, wanted a float"),
    ("sm_scale", math.nan, ValueError, "sm_scale: got nan, wanted a finite number > 0"),
    ("sm_scale", math.inf, ValueError, "sm_scale: got inf, wanted a finite number > 0"),
    ("sm_scale", 0.0, ValueError, "sm_scale: got 0.0, wanted a finite number > 0"),
    ("sm_scale", -0.5, ValueError, "sm_scale: got -0.5, wanted a finite number > 0"),
    ("sm_scale", 1e-60, ValueError, "sm_scale: got 1e-60, wanted a finite number > 0"),
    ("sm_scale", 1e300, ValueError, r"sm_scale: got 1e\+300, wanted a finite number > 0"),
    ("d_v", 512.0, TypeError, "d_v: got float, wanted an int"),
    ("d_v", True, TypeError, "d_v: got bool, wanted an int"),
    ("d_v", "512", TypeError, "d_v: got str, wanted an int"),
    ("d_v", torch.tensor(512), TypeError, "d_v: got Tensor, wanted an int"),
    ("d_v", Fraction512, TypeError, "d_v: got Fraction512, wanted an int"),
    ("d_v", 2**32 + 512, ValueError, "d_v: got 4294967808, wanted 512"),
    ("d_v", 2**64 + 512, ValueError, "d_v: got 18446744073709552128, wanted 512"),
    ("d_v", -512, ValueError, "d_v: got -512, wanted 512"),
    ("d_v", 576, ValueError, "d_v: got 576, wanted 512"),
    ("path", "fast", ValueError, "path: got 'fast', wanted one of auto, reference, padded, gather, packed"),
    ("path", 3, TypeError, "path: got int, wanted a str"),
    ("path", ["auto"], TypeError, "path: got list, wanted a str"),
    ("row_invariant", 1, TypeError, "row_invariant: got int, wanted True or False"),
    ("row_invariant", None, TypeError, "row_invariant: got NoneType, wanted True or False"),
    ("cu_seqlens_q", lambda t: torch.tensor([0], dtype=torch.int32), ValueError, r"cu_seqlens_q: got shape \[1\]"),
    ("cu_seqlens_q", lambda t: torch.tensor([0, 5]), TypeError, "cu_seqlens_q: got torch.int64, wanted torch.int32"),
    ("cu_seqlens_q", [0, 5], TypeError, "cu_seqlens_q: got list, wanted a torch.Tensor"),
    ("plan", "plan", TypeError, "plan: got str, wanted a fewhead.Plan"),
    ("plan", torch.zeros(8, dtype=torch.uint8), TypeError, "plan: got Tensor, wanted a fewhead.Plan"),
    ("costs", {"padded": 1}, TypeError, "costs: got dict, wanted fewhead.Costs"),
    ("costs", fewhead.Costs(1, 2, 3, 4), TypeError, "costs.padded: got 1, wanted a tuple of 3 numbers"),
    ("costs", fewhead.Costs(*[(True, 0.0, 0.0)] * 4), TypeError, "costs.padded: got bool, wanted a float"),
    ("costs", fewhead.Costs(*[(math.nan, 0.0, 0.0)] * 4), ValueError, "costs.padded: got .*nan"),
]


@pytest.mark.parametrize("name, value, exception, text", WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)])
def test_refused(name, value, exception, text):
    if name == "d_v" and isinstance(value, type):
        value = value()
    out = canary()
    good = small(CPU)
    call(good, out=canary())  # the shape's entry is there before the wrong call, and after it
    arguments = with_(**{name: value})
    with pytest.raises(exception, match=text):
        call(arguments, out=out)
    assert (out.view(torch.int16) == CANARY).all()
    compare(call(good), wanted(good))


@pytest.mark.parametrize(
    "make, exception, text",
    [
        (lambda: canary().float(), TypeError, "out: got torch.float32, wanted torch.bfloat16"),
        (lambda: canary(h_q=9), ValueError, r"out: got shape \[5, 9, 512\], wanted \[5, 8, 512\]"),
        (lambda: canary(1).expand(5, 8, 512), ValueError, "out: got strides 0, 512"),
        (lambda: canary().to("meta"), TypeError, "out: got a meta tensor"),
    ],
)
def test_refused_out(make, exception, text):
    with pytest.raises(exception, match=text):
        call(small(CPU), out=make())


def test_out_over_an_input():
    arguments = small(CPU)
    with pytest.raises(ValueError, match="out: its memory overlaps q"):
        call(arguments, out=arguments["q"])


def test_what_the_library_declines_is_not_implemented():
    with pytest.raises(NotImplementedError, match="row_invariant: got 1 on path packed"):
        call(small(CPU), path="packed", row_invariant=True)


@pytest.mark.parametrize("d_v", [numpy.int64(512), numpy.int32(512), numpy.uint16(512)])
def test_numpy_ints(d_v):
    arguments = small(CPU)
    compare(call(arguments, d_v=d_v), wanted(arguments))


@pytest.mark.parametrize("scale", [numpy.float64(0.5), numpy.float32(0.5), 1, numpy.int64(1)])
def test_real_scales(scale):
    arguments = dict(small(CPU), sm_scale=scale)
    compare(call(arguments), wanted(dict(arguments, sm_scale=float(scale))))


def test_a_flag_is_not_taken_for_an_equal_number():
    """True == 1 and 512 == 512.0: what was cached for one is not used for the other."""
    arguments = small(CPU)
    call(arguments, row_invariant=True)
    with pytest.raises(TypeError, match="row_invariant: got int"):
        call(arguments, row_invariant=1)
    call(dict(arguments, sm_scale=1.0))
    with pytest.raises(TypeError, match="sm_scale: got bool"):
        call(dict(arguments, sm_scale=True))
    with pytest.raises(TypeError, match="d_v: got float"):
        call(arguments, d_v=512.0)


def test_strides_beyond_32_bits():
    """Two rows of q 2^31 + 64 elements apart, on memory that is mapped and never touched in between."""
    stride, rows = 2**31 + 64, 2
    memory = mmap.mmap(
        -1, (stride * (rows - 1) + 8 * 512) * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    )  # no reserve
    flat = torch.frombuffer(memory, dtype=torch.bfloat16)
    arguments = small(CPU, s_q=rows)
    q = flat.as_strided((rows, 8, 512), (stride, 512, 1))
    q.copy_(arguments["q"])
    for path in ("gather", "padded", "packed"):
        compare(call(dict(arguments, q=q), path=path), wanted(arguments))


def test_gradients():
    """With gradients enabled a tensor that requires grad is refused; without, it is taken, and no result requires grad."""
    arguments = small(CPU)
    good = wanted(arguments)
    arguments["attn_sink"] = torch.nn.Parameter(arguments["attn_sink"])
    with pytest.raises(ValueError, match="attn_sink: got a tensor that requires grad.*torch.no_grad"):
        call(arguments)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            results = call(arguments)
            compare(results, good)
            assert not any(t.requires_grad for t in results)
    with pytest.raises(ValueError, match="attn_sink: got a tensor that requires grad"):
        call(arguments)


def test_negated_views():
    sink = torch.zeros(8, dtype=torch.complex64).conj().imag
    with pytest.raises(ValueError, match="attn_sink: got stride 2"):
        call(small(CPU, h_q=8) | {"attn_sink": sink})
    one = torch.full((1,), 3j, dtype=torch.complex64).conj().imag
    arguments = small(CPU, h_q=1)
    call(dict(arguments, attn_sink=torch.zeros(2)[::2]))
    with pytest.raises(ValueError, match="attn_sink: got a view that negates its memory"):
        call(dict(arguments, attn_sink=one))


def test_subclasses_with_memory_of_their_own():
    class Weight(torch.nn.Parameter):
        pass

    arguments = small(CPU)
    sink = Weight(arguments["attn_sink"].clone(), requires_grad=False)
    compare(call(dict(arguments, attn_sink=sink)), wanted(arguments))


PLANS = [
    ({"indices": [[1]]}, TypeError, "indices: got list, wanted a torch.Tensor"),
    ({"s_kv": -1}, ValueError, r"s_kv: got -1, wanted 0 \.\. "),
    ({"s_kv": 2**32 + 40}, ValueError, r"s_kv: got 4294967336, wanted 0 \.\. 2147483647"),
    ({"s_kv": 40.0}, TypeError, "s_kv: got float, wanted an int"),
    ({"h_q": 0}, ValueError, r"h_q: got 0, wanted 1 \.\. 128"),
    ({"h_q": True}, TypeError, "h_q: got bool, wanted an int"),
    ({"d_qk": 500}, ValueError, "d_qk: got 500, wanted 512 or 576"),
    ({"path": "quick"}, ValueError, "path: got 'quick', wanted one of"),
    ({"costs": 1}, TypeError, "costs: got int, wanted fewhead.Costs"),
    ({"topk_length": torch.ones(4, dtype=torch.int32)}, ValueError, r"topk_length: got shape \[4\], wanted \[5\]"),
]


@pytest.mark.parametrize("change, exception, text", PLANS, ids=[str(list(p[0])[0]) + str(i) for i, p in enumerate(PLANS)])
def test_refused_plans(change, exception, text):
    arguments = small(CPU)
    good = {"indices": arguments["indices"], "s_kv": 40, "h_q": 8, "topk_length": arguments["topk_length"]}
    with pytest.raises(exception, match=text):
        fewhead.Plan(**{**good, **change})


def test_plans_of_other_sizes():
    arguments = small(CPU)
    lists = {"topk_length": arguments["topk_length"]}
    for other in (
        fewhead.Plan(arguments["indices"], s_kv=41, h_q=8, **lists),
        fewhead.Plan(arguments["indices"], s_kv=40, h_q=16, **lists),
        fewhead.Plan(arguments["indices"][:4], s_kv=40, h_q=8, topk_length=lists["topk_length"][:4]),
    ):
        with pytest.raises(ValueError, match=r"plan\.\w+: got \d+, wanted the call's \d+"):
            call(arguments, path="packed", plan=other)


def test_refused_plan_says_what_it_was_built_for():
    arguments = small(CPU)
    s_q, _, topk = arguments["indices"].shape
    other = fewhead.Plan(arguments["indices"], s_kv=40, h_q=16, topk_length=arguments["topk_length"])
    sizes = f"the call: s_q={s_q}, s_kv=40, h_q=8, topk={topk}; the plan: fewhead.Plan(s_q={s_q}, s_kv=40, h_q=16, topk={topk}, "
    for path in ("auto", "packed"):
        with pytest.raises(ValueError, match=r"^plan\.group: got 4, wanted the call's 8 \(" + re.escape(sizes)):
            call(arguments, path=path, plan=other)


def test_declared_types_take_whole_pointers():
    """Without declared types ctypes cuts pointers to 32 bits."""
    from fewhead import _abi, _library

    for name in _abi.FUNCTIONS:
        assert getattr(_library.lib, name).argtypes is not None, name
    assert dict(_abi.fh_call._fields_)["q"] is ctypes.c_void_p
