"""Inputs, the formula in double, and FlashMLA's comparison."""

import torch

import fewhead

OUT_ABS, OUT_REL, OUT_COSINE = 8e-4, 3.01 / 128, 7e-6
STATISTIC_ABS, STATISTIC_REL = 1e-6, 2.01 / 65536
INVALID = (-(2**31), -123456, -1, 114514, 1919810, 2147480000, 2**31 - 1)


def formula(q, kv, indices, sm_scale, topk_length=None, attn_sink=None):
    """(out, max_logits, lse) in fp64, row by row in blocks: softmax over the valid keys, the sink in the denominator of out
    alone."""
    s_q, topk = indices.shape[0], indices.shape[2]
    rows, lists = kv[:, 0].double(), indices[:, 0].long()
    valid = (lists >= 0) & (lists < rows.shape[0])
    if topk_length is not None:
        valid &= torch.arange(topk, device=q.device)[None] < topk_length[:, None]
    if rows.shape[0] == 0:
        rows = torch.zeros(1, q.shape[2], dtype=torch.float64, device=q.device)
    results = []
    step = max(1, 2**25 // max(1, topk * q.shape[2]))
    for a in range(0, max(s_q, 1), step):
        keys = rows[lists[a : a + step].clamp(0, rows.shape[0] - 1)]
        logits = torch.einsum("shd,skd->shk", q[a : a + step].double(), keys) * sm_scale
        logits = logits.masked_fill(~valid[a : a + step, None], float("-inf"))
        largest = logits.amax(-1) if topk else torch.full(logits.shape[:2], float("-inf"), dtype=torch.float64, device=q.device)
        shift = largest.masked_fill(largest == float("-inf"), 0)
        p = (logits - shift[..., None]).exp()
        total = p.sum(-1)
        lse = (total.log() + shift).masked_fill(total == 0, float("inf"))
        under = total if attn_sink is None else total + (attn_sink.double() - shift).exp()
        out = torch.einsum("shk,skd->shd", p, keys[..., :512]) / under.masked_fill(total == 0, 1)[..., None]
        results.append((out, largest, lse))
    return tuple(torch.cat(parts) for parts in zip(*results))


def _compare_statistic(name, got, want):
    for special in (float("inf"), float("-inf")):
        assert torch.equal(got == special, want == special), f"{name}: {special} stands in other places"
    assert not got.isnan().any(), f"{name}: has NaN"
    finite = want.isfinite()
    error = (got.double() - want).abs()[finite]
    bad = (error > STATISTIC_ABS) & (error > STATISTIC_REL * want[finite].abs())
    assert not bad.any(), f"{name}: {int(bad.sum())} off, largest error {error.max().item():.3g}"


def compare(got, want):
    """Assert that results are those of the formula, by FlashMLA's tolerances."""
    out, max_logits, lse = got
    assert out.dtype == torch.bfloat16 and max_logits.dtype == lse.dtype == torch.float32
    assert out.shape == want[0].shape and max_logits.shape == lse.shape == want[1].shape
    _compare_statistic("max_logits", max_logits, want[1])
    _compare_statistic("lse", lse, want[2])
    a, b = out.double(), want[0]
    assert not a.isnan().any(), "out: has NaN"
    error = (a - b).abs()
    bad = (error > OUT_ABS) & (error > OUT_REL * b.abs())
    assert not bad.any(), f"out: {int(bad.sum())} off, largest error {error.max().item():.3g}"
    size = (a * a + b * b).sum()
    if size > 0:
        cosine = (1 - 2 * (a * b).sum() / size).item()
        assert cosine < OUT_COSINE, f"out: cosine difference {cosine:.3g}"


def strided(t):
    """The same values in memory with gaps: the last dimension contiguous, every other stride larger than needed."""
    room = torch.full([n + 1 for n in t.shape], 77, dtype=t.dtype, device=t.device)
    view = room[tuple(slice(0, n) for n in t.shape)]
    view.copy_(t)
    return view


def flashmla_inputs(case, h_q, device, seed=0):
    """Inputs as FlashMLA's generator makes them (normal / 10 plus a constant, clamped; lists without repeats, a tail of invalid
    indices where topk > s_kv), all tensors strided views. A dict of flash_mla_sparse_fwd's arguments."""
    g = torch.Generator(device=device).manual_seed(seed)
    s_q, s_kv, topk, d_qk = case["s_q"], case["s_kv"], case["topk"], case["d_qk"]

    def draw(*shape):
        shift = torch.rand((), generator=g, device=device).item() * 0.1 - 0.05
        values = torch.empty(shape, dtype=torch.bfloat16, device=device)
        for part in values.split(1024):
            part.copy_((torch.randn(part.shape, generator=g, device=device) / 10 + shift).clamp_(-10, 10))
        return values

    q, kv = draw(s_q, h_q, d_qk), draw(s_kv, 1, d_qk)
    picked = min(topk, s_kv)
    indices = torch.empty(s_q, 1, topk, dtype=torch.int32, device=device)
    invalid = torch.tensor(INVALID + (s_kv,), dtype=torch.int64, device=device)
    for part in indices[:, 0].split(256):
        n = part.shape[0]
        part[:, :picked] = torch.rand(n, s_kv, generator=g, device=device).argsort(dim=1)[:, :picked].int()
        part[:, picked:] = invalid[torch.randint(len(invalid), (n, topk - picked), generator=g, device=device)].int()
        if case["some_rows_all_invalid"]:
            part[torch.rand(n, generator=g, device=device) < 0.02] = -1
    if case["some_rows_all_invalid"]:
        indices[0] = -1
    arguments = {"q": strided(q), "kv": strided(kv), "indices": strided(indices), "sm_scale": 0.5}
    if case["topk_length"]:
        arguments["topk_length"] = torch.randint(0, topk + 1, (s_q,), generator=g, device=device, dtype=torch.int32)
    if case["attn_sink"]:
        sink, lot = torch.randn(h_q, generator=g, device=device), torch.rand(h_q, generator=g, device=device)
        sink[lot < 0.31], sink[lot > 0.69] = float("-inf"), float("inf")
        arguments["attn_sink"] = sink
    return arguments


def small(device, s_q=5, s_kv=40, h_q=8, topk=12, d_qk=512, seed=1):
    """Arguments of a small call with everything optional in it but out."""
    case = {
        "s_q": s_q,
        "s_kv": s_kv,
        "topk": topk,
        "d_qk": d_qk,
        "some_rows_all_invalid": False,
        "topk_length": True,
        "attn_sink": True,
    }
    return flashmla_inputs(case, h_q, device, seed)


def wanted(arguments):
    """The formula on a call's arguments."""
    names = ("q", "kv", "indices", "sm_scale", "topk_length", "attn_sink")
    return formula(**{name: arguments[name] for name in names if name in arguments})


def o1(device, s_q=1, s_kv=8, lists=((3, 5),), h_q=8):
    """The case whose right answer is known without arithmetic: q = 0, and every element of KV row j is j."""
    width = max(len(one) for one in lists)
    rows = [list(one) + [-1] * (width - len(one)) for one in lists]
    indices = torch.tensor([rows[i % len(rows)] for i in range(s_q)], dtype=torch.int32, device=device).reshape(s_q, 1, width)
    kv = torch.arange(s_kv, dtype=torch.float32, device=device).to(torch.bfloat16).reshape(s_kv, 1, 1).repeat(1, 1, 512)
    return {"q": torch.zeros(s_q, h_q, 512, dtype=torch.bfloat16, device=device), "kv": kv, "indices": indices, "sm_scale": 1.0}


def call(arguments, **more):
    """The plain function."""
    return fewhead.flash_mla_sparse_fwd(**arguments, **more)


def paths(device, h_q):
    """The paths of a device for so many heads, but for the oracle."""
    return [path for path in fewhead.describe(device, h_q)["paths"] if path != "reference"]
