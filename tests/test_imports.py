"""The import rule, enforced: jobs -> cluster -> dllm_core -> kernels, and heavy libraries only where they belong.

Beyond the layers: ray belongs to `cluster/work`, boto3 to `cluster/s3`, lm_eval to one file; reading and writing
know no worker, and reading no result; policies know neither models nor the loop nor each other; and no module imports
itself by a detour. `examples` and `benchmarks` may import anything.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "kernels": {"torch", "triton"},
    "dllm_core": {"kernels", "torch", "transformers", "tokenizers", "safetensors", "jinja2", "pydantic"},
    "cluster": {
        "dllm_core", "kernels", "torch", "ray", "pyarrow", "numpy", "boto3", "botocore", "pydantic", "jinja2", "yaml",
        "rich", "lm_eval",
    },
    "jobs": {
        "cluster", "dllm_core", "kernels", "torch", "pyarrow", "pydantic", "pydantic_settings", "jinja2", "yaml",
        "rich",
    },
}  # fmt: skip
GOVERNED = set(MAY_IMPORT).union(*MAY_IMPORT.values(), {"examples", "benchmarks", "tests"})
ONLY_BELOW = {
    "ray": "cluster/work/",
    "boto3": "cluster/s3/",
    "botocore": "cluster/s3/",
    "lm_eval": "cluster/harness/lm.py",
}
FOLDER_MAY_NOT_IMPORT = {
    "cluster/reading/": {"cluster.work", "cluster.writing"},
    "cluster/writing/": {"cluster.work"},
    "cluster/s3/": {"cluster.work", "cluster.reading", "cluster.writing", "cluster.shard"},
}
POLICIES = {"cache", "commit"}
POLICY_MAY_NOT_IMPORT = {"engine", "decode", "forward", "retire", "seating", "pool", "text", "models"}
POLICY_MAY_IMPORT = {"dllm_core.models.base"}  # shapes and protocols
FILES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imports(tree: ast.Module, skip_types: bool = False) -> Iterator[str]:
    """Dotted names that a module imports; `from a import b` counts as a.b too, which may be a module."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif skip_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.extend(node.orelse)
        else:
            nodes.extend(ast.iter_child_nodes(node))


def violations(source: str, path: str) -> list[str]:
    """What a file at this path, relative to the root, imports against the rule."""
    parts, names = path.split("/"), set(imports(ast.parse(source)))
    allowed = MAY_IMPORT[parts[0]] | {parts[0]}
    found = [name for name in names if name.startswith(".")]
    found += [name for name in names if (top := name.split(".")[0]) in GOVERNED and top not in allowed]
    found += [name for name in names if not path.startswith(ONLY_BELOW.get(name.split(".")[0], ""))]
    for folder, forbidden in FOLDER_MAY_NOT_IMPORT.items():
        if path.startswith(folder):
            found += [name for name in names if ".".join(name.split(".")[:2]) in forbidden]
    if parts[:1] == ["dllm_core"] and parts[1] in POLICIES and parts[-1] not in {"__init__.py", "base.py"}:
        for name in names:
            package, _, rest = name.partition(".")
            module, _, inner = rest.partition(".")
            if package != "dllm_core" or any(name == ok or name.startswith(f"{ok}.") for ok in POLICY_MAY_IMPORT):
                continue
            sibling = module in POLICIES and inner.split(".")[0] not in {"base", "history"}
            if sibling or (module in POLICY_MAY_NOT_IMPORT and name != "dllm_core.models"):
                found.append(name)
    return sorted(set(found))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def cycle(sources: dict[str, str]) -> list[str]:
    """One ring of modules that import each other, if there is any; names for type checkers alone do not count."""
    graph = {
        name: {found for found in imports(ast.parse(source), skip_types=True) if found in sources and found != name}
        for name, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_package_imports_only_what_its_layer_allows(path: Path) -> None:
    assert violations(path.read_text(), path.relative_to(ROOT).as_posix()) == []


def test_no_module_imports_itself_by_a_detour() -> None:
    assert cycle({module_name(path): path.read_text() for path in FILES}) == []


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("kernels/a.py", "import dllm_core.rows", ["dllm_core.rows"]),
        ("kernels/a.py", "def f():\n    import numpy as np", ["numpy"]),
        ("dllm_core/a.py", "from cluster.shard import Shard", ["cluster.shard", "cluster.shard.Shard"]),
        ("dllm_core/a.py", "import ray", ["ray"]),
        ("dllm_core/a.py", "from . import rows", [".", "..rows"]),
        ("dllm_core/a.py", "import triton", ["triton"]),
        ("cluster/a.py", "import jobs.cli", ["jobs.cli"]),
        ("cluster/a.py", "import boto3", ["boto3"]),
        ("cluster/reading/a.py", "from botocore.config import Config", ["botocore.config", "botocore.config.Config"]),
        ("cluster/s3/a.py", "import cluster.writing.storage", ["cluster.writing.storage"]),
        ("cluster/job.py", "def f():\n    import ray", ["ray"]),
        ("cluster/harness/tables.py", "import lm_eval.api", ["lm_eval.api"]),
        ("jobs/a.py", "import lm_eval", ["lm_eval"]),
        ("cluster/reading/a.py", "import ray.util", ["ray.util"]),
        ("cluster/reading/a.py", "import cluster.writing.parts", ["cluster.writing.parts"]),
        ("cluster/reading/a.py", "from cluster import work", ["cluster.work"]),
        ("cluster/writing/a.py", "import cluster.work.runner", ["cluster.work.runner"]),
        ("jobs/a.py", "import ray.util", ["ray.util"]),
        ("jobs/a.py", "from examples.tiny import words", ["examples.tiny", "examples.tiny.words"]),
        (
            "dllm_core/cache/a.py",
            "from dllm_core.cache.dual import X",
            ["dllm_core.cache.dual", "dllm_core.cache.dual.X"],
        ),
        ("dllm_core/commit/a.py", "import dllm_core.decode", ["dllm_core.decode"]),
        ("dllm_core/commit/a.py", "import dllm_core.models.llada", ["dllm_core.models.llada"]),
    ],
)
def test_the_rule_catches_what_it_forbids(path: str, source: str, found: list[str]) -> None:
    assert violations(source, path) == found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("jobs/a.py", "import cluster.work.driver, dllm_core.engine, kernels.noise, os"),
        ("cluster/s3/client.py", "import boto3\nfrom botocore.config import Config"),
        ("cluster/work/pool.py", "import ray\nfrom cluster.writing.parts import find_part"),
        ("cluster/writing/a.py", "from cluster.reading.prompts import RowPrompt"),
        (
            "dllm_core/cache/a.py",
            "from dllm_core.cache.base import CachePolicy\nfrom dllm_core.models.base import ModelShape",
        ),
        ("dllm_core/engine.py", "from dllm_core.cache.dual import X\nimport dllm_core.models.llada"),
    ],
)
def test_the_rule_allows_the_way_down(path: str, source: str) -> None:
    assert violations(source, path) == []


def test_a_cycle_is_found_but_not_one_of_types_alone() -> None:
    ring = {"a": "import b", "b": "def f():\n    from c import x", "c": "import a"}
    assert set(cycle(ring)) == {"a", "b", "c"}
    assert cycle(ring | {"c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a"}) == []


WITHOUT_CLUSTER_LIBRARIES = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "pyarrow", "boto3", "botocore", "triton"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
for name in sys.argv[1:]:
    importlib.import_module(name)

import torch
from dllm_core.models.dense import dense_logits
from dllm_core.models.llada import LladaConfig
from dllm_core.models.transformer import Transformer

config = LladaConfig(
    d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=24, vocab_size=20, mask_token_id=2, eos_token_id=1
)
model = Transformer(config, 2, (1,), []).requires_grad_(False)
for parameter in model.parameters():
    parameter.fill_(0.1)
print(tuple(dense_logits(model, torch.tensor([[4, 2, 2]])).shape))

from kernels.token_signals import token_signals, token_signals_triton

print(token_signals(torch.eye(2)).token.tolist())
try:
    token_signals_triton(torch.eye(2))
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.timeout(180)  # imports torch and transformers anew
def test_engine_and_kernels_run_where_ray_pyarrow_boto3_and_triton_are_not_installed() -> None:
    modules = [module_name(path) for path in FILES if path.relative_to(ROOT).parts[0] in {"dllm_core", "kernels"}]
    assert "dllm_core.models.load" in modules
    command = [sys.executable, "-c", WITHOUT_CLUSTER_LIBRARIES, *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told == ["(1, 3, 20)", "[0, 1]", "_parts_kernel is a Triton kernel, and triton is not installed"]
