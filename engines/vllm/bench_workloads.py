"""The workloads of the bench, by the names that lua/fewhead/serve/workload.lua has for them.

cold8k, cold32k, cold128k   one prompt at a time, one token out
C16x8kx48, C4x32kx12        closed loop: so many requests at a time, prompt length, count; 128 tokens out
short-after-8k              a prompt of 512 alone, then behind one of 8192
"""
from typing import NamedTuple

K = 1024


class Cold(NamedTuple):
    """One prompt at a time."""
    prompt: int

    @property
    def longest(self):
        return self.prompt + 1

    @property
    def case(self):
        return {"requests": 1, "prompt": self.prompt, "output": 1}


class Closed(NamedTuple):
    """`concurrency` requests at a time; where one ends, the next is sent."""
    concurrency: int
    prompt: int
    count: int
    output: int

    @property
    def longest(self):
        return self.prompt + self.output

    @property
    def case(self):
        return {"requests": self.count, "prompt": self.prompt, "output": self.output, "concurrency": self.concurrency}


class Short(NamedTuple):
    """A short prompt alone, a long one, and the short one again."""
    before: int
    prompt: int

    @property
    def longest(self):
        return self.before + 1

    @property
    def case(self):
        return {"requests": 3, "prompt": self.prompt, "before": self.before, "output": 1}


WORKLOADS = {
    "cold8k": Cold(8 * K), "C16x8kx48": Closed(16, 8 * K, 48, 128), "short-after-8k": Short(8 * K, 512), "cold32k": Cold(32 * K),
    "C4x32kx12": Closed(4, 32 * K, 12, 128), "cold128k": Cold(128 * K),
}
