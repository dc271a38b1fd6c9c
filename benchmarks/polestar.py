"""Polestar and its parts on the bundled model's held-out problems, each line against Fast-dLLM's dual cache and
threshold.

    python -m benchmarks.polestar --rows 2400

Ablations of Polestar: without its cache (the dual cache in its place), without its commit rule, without drift in it,
without commits right of the block, drift measured as a cosine, clusters chosen at random; layer inputs kept in NVFP4;
and settings of the cache. Columns as in benchmarks.methods.
"""

import argparse
from typing import get_args

import torch

from benchmarks.engine import commit_of, method_of
from benchmarks.methods import add_sizes, compare
from dllm_core.config import DecodeConfig
from dllm_core.window import WindowKind, hidden_window

METHODS = {
    "dual cache, threshold (Fast-dLLM)": ("dual", "threshold"),
    "Polestar": ("polestar", "polestar"),
    "without its cache": ("dual", "polestar"),
    "without its commit": ("polestar", "threshold"),
    "without drift in its commit": ("polestar", "polestar,early=0.9"),
    "without suffix commits": ("polestar", "polestar,suffix=false"),
    "cosine in place of KL": ("polestar,measure=cosine", "polestar"),
    "random clusters": ("polestar,choose=random", "polestar"),
    "NVFP4 layer inputs": ("polestar,store=nvfp4", "polestar"),
    "no cache, its commit": ("none", "polestar"),
    "no cache, threshold": ("none", "threshold"),
    "alpha 1": ("polestar", "polestar,alpha=1"),
    "alpha 1, early 0.5": ("polestar", "polestar,alpha=1,early=0.5"),
    "alpha 0, early 0.5": ("polestar", "polestar,alpha=0,early=0.5"),
    "dual cache, threshold 0.8": ("dual", "threshold,tau=0.8"),
    "dual cache, threshold 0.7": ("dual", "threshold,tau=0.7"),
    "update at every token": ("polestar,tau_upd=0,burst=0", "polestar"),
    "update every 8 tokens": ("polestar,tau_upd=8,burst=8", "polestar"),
    "1 cluster": ("polestar,refreshed=1", "polestar"),
    "8 clusters": ("polestar,refreshed=8,capacity=96", "polestar"),
    "8 clusters, last layer too": ("polestar,refreshed=8,refreshed_last=8,capacity=96", "polestar"),
    "4 clusters in the last layer": ("polestar,refreshed_last=4", "polestar"),
    "8 clusters in the last layer": ("polestar,refreshed_last=8,capacity=96", "polestar"),
    "8 in the last layer, every token": ("polestar,refreshed_last=8,capacity=96,tau_upd=0,burst=0", "polestar"),
    "8 in the last layer, no drift": ("polestar,refreshed_last=8,capacity=96", "polestar,early=0.9"),
    "two blocks right of the block, all of them": (
        "polestar,blocks_after=2,clusters=12,refreshed=12,refreshed_last=12,capacity=128",
        "polestar,suffix_blocks=2",
    ),
    "three blocks right of the block, all of them": (
        "polestar,blocks_after=3,clusters=16,refreshed=16,refreshed_last=16,capacity=160",
        "polestar,suffix_blocks=3",
    ),
    "capacity 16": ("polestar,capacity=16", "polestar"),
    "every block starts whole": ("polestar,full_pass_mode=every_n,full_pass_period=1", "polestar"),
    "every second block starts whole": ("polestar,full_pass_period=2", "polestar"),
    "only the first block starts whole": ("polestar,full_pass_mode=every_n,full_pass_period=99", "polestar"),
}


def memory() -> None:
    """Bytes of the window's layer inputs for one slot, as the tensors are; defaults of the cache, blocks of 32."""
    for name, layers, hidden in (("the tiny model", 6, 256), ("LLaDA-8B's sizes", 32, 4096)):
        kinds = {
            kind: hidden_window(kind, layers, 1, 96, 8, hidden, torch.bfloat16, "meta") for kind in get_args(WindowKind)
        }
        print(
            f"layer inputs of a slot's window, {name}: "
            + ", ".join(
                f"{kind} {held.bytes_on_device / 2**20:.2f} MiB and {held.bytes_on_host / 2**20:.2f} on the host"
                for kind, held in kinds.items()
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(METHODS), metavar="NAME", help="; ".join(METHODS))
    add_sizes(parser)
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(METHODS):
        parser.error(f"no such method: {', '.join(sorted(unknown))}; there are: {'; '.join(METHODS)}")
    methods = {
        name: DecodeConfig(**method_of(cache), commit=commit_of(commit), block_length=32)
        for name, (cache, commit) in METHODS.items()
        if name in arguments.only
    }
    memory()
    compare(methods, arguments)


if __name__ == "__main__":
    main()
