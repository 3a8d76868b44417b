"""The plain function."""

import torch

from ._call import sparse_fwd
from ._operator import traced


def flash_mla_sparse_fwd(
    q,
    kv,
    indices,
    sm_scale,
    d_v=512,
    attn_sink=None,
    topk_length=None,
    out=None,
    *,
    path="auto",
    plan=None,
    cu_seqlens_q=None,
    row_invariant=False,
    costs=None
):
    """Sparse MLA prefill; FlashMLA's function of the same name, for 1 to 128 heads and lists of any width.

    out[s, h] = sum over the keys t that row s lists of softmax_t(sm_scale * q[s, h] . kv[t]) * kv[t, :512]

    q            bf16 [s_q, h_q, d_qk]: h_q in 1 .. 128, d_qk 512 or 576; any row and head stride, so a slice of the heads of a
                 padded buffer will do
    kv           bf16 [s_kv, 1, d_qk]; any row stride
    indices      int32 [s_q, 1, topk]; any row stride. An index below 0 or from s_kv up is no key; a repeated index counts as
                 often as it stands
    sm_scale     a float > 0
    d_v          512
    attn_sink    fp32 [h_q] or None: adds exp(sink) to the denominator of out alone
    topk_length  int32 [s_q] or None: entries of each list that count, clamped to 0 .. topk
    out          bf16 [s_q, h_q, 512] to write in place, any row and head stride, or None: a new tensor

    Keywords that FlashMLA does not have:
    path          "auto", "padded", "gather", "packed" or "reference"; fewhead.stats() says what ran
    plan          a fewhead.Plan of the same lists, or None: built in the workspace where the path wants one
    cu_seqlens_q  int32 [requests + 1] on the device, or None: first row of each request of the chunk; no tile then holds rows of
                  two
    row_invariant True: a row's result does not depend on its neighbours, bit for bit; nothing is packed
    costs         a fewhead.Costs for path="auto", or None: the device's own

    Returns (out, max_logits, lse): out bf16 [s_q, h_q, 512], max_logits and lse fp32 [s_q, h_q]. lse is the natural logarithm of
    the sum of exp(logit), without the sink. A row without a key: out 0, lse +inf, max_logits -inf.

    All tensors lie on one device, cpu or cuda. On CUDA the call goes into PyTorch's current stream, waits for nothing and may be
    recorded in a graph. Inference only: with gradients enabled a tensor that requires grad is refused; under torch.no_grad() it
    is taken.

    TypeError, ValueError, NotImplementedError name the argument, what was given and what was wanted; nothing has been written
    then."""
    if torch.compiler.is_dynamo_compiling():
        return traced(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out, path, plan, cu_seqlens_q, row_invariant, costs)
    return sparse_fwd(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out, path, plan, cu_seqlens_q, row_invariant, costs)
