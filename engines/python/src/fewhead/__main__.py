"""python -m fewhead: versions, devices, what works here. Exits 1 where the CPU device does not compute what it should."""

import math
import sys

import torch

import fewhead
from fewhead import _library


def self_check(device):
    """The smallest call: rows 3 and 5 of a table whose row j is full of j have the mean 4 and lse ln 2. The maximum and lse must
    be right to the last bits that fp32 has."""
    q = torch.zeros(1, 8, 512, dtype=torch.bfloat16, device=device)
    kv = torch.arange(8, dtype=torch.bfloat16, device=device).reshape(8, 1, 1).expand(8, 1, 512).contiguous()
    indices = torch.tensor([[[3, 5, -1]]], dtype=torch.int32, device=device)
    out, max_logits, lse = fewhead.flash_mla_sparse_fwd(q, kv, indices, 1.0)
    return bool((out == 4).all() and (max_logits == 0).all() and ((lse - math.log(2)).abs() < 1e-6).all())


def line(device):
    """What is known of a device, and whether it computes."""
    try:
        known = fewhead.describe(device)
        good = self_check(device)
    except (RuntimeError, MemoryError) as error:
        return False, f"{device}: not usable: {error}"
    driver = f", driver {known['driver']}" if known["driver"] else ""
    kept = "works" if good else "WRONG RESULTS"
    return good, f"{device}: {known['name']}{driver}; paths {', '.join(known['paths'])}; {kept}"


def main():
    print(f"fewhead {fewhead.version()} ({fewhead.build_info()})")
    print(f"library {_library.path}")
    print(f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}")
    good, text = line("cpu")
    print(text)
    problem = _library.driver_problem(_library.cuda_toolkit(), _library.driver_version())
    if problem:
        print(problem)
    elif not torch.cuda.is_available():
        print("CUDA: the driver is there, and PyTorch finds no device")
    else:
        for index in range(torch.cuda.device_count()):
            each, text = line(f"cuda:{index}")
            good = good and each
            print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
