"""What each feature of a TSPD controller is worth on the bundled model: trained without one at a time, then decoding.

    python -m benchmarks.ablation --job out/controller --rows 960

--job is a finished run of jobs/train_controller.py for blocks of 32; its traces are trained on, with its settings, once
per set of features (and seed), and delta is set on its validation prompts. Each controller then decodes held-out
problems with the dual cache. The last lines are all features with confidence extrapolation around them, and threshold
alone. Differences are against the first line, all features.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.engine import EXAMPLES, commit_of, method_of
from benchmarks.methods import add_sizes, compare
from cluster.traces import PARTS, as_observations, read_traces
from cluster.writing.storage import LocalStorage
from dllm_core.config import DecodeConfig, ModelConfig
from dllm_core.controller.features import NAMES
from dllm_core.models.load import load
from dllm_core.train.settings import TspdTraining
from dllm_core.train.trained import train

BLOCK = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True, help="folder of a finished training job")
    parser.add_argument("--extrapolation", default="horizon=4,coverage=0.5,z=0,sigma_max=9,c_floor=0.5,tau_min=0.8")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the trainings")
    add_sizes(parser)
    settings = parser.parse_args()
    storage = LocalStorage(Path(settings.job))
    given = yaml.safe_load(storage.read("_run/config.yaml"))["controller"]
    parts = {part: as_observations(read_traces(storage, "traces/all", part)) for part in PARTS}
    model, _ = load(ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=settings.dtype, device="cpu"))
    sets = {"all features": list(NAMES)} | {f"no {gone}": [n for n in NAMES if n != gone] for gone in NAMES}
    with tempfile.TemporaryDirectory() as folder:
        rules: dict[str, dict[str, Any]] = {}
        for seed in settings.seeds:
            for name, features in sets.items():
                place = Path(folder) / f"{name} {seed}".replace(" ", "-")
                training = TspdTraining.model_validate(given | {"features": features, "seed": seed})
                card = training.card(model.shape, BLOCK)
                found = train(card, training, parts, {}, Path(folder) / f"{place.name}.safetensors", place)
                test = found.tested
                print(
                    f"{name}, seed {seed}: delta {found.chosen.delta:g}; test prompts: {test.false_fixes:.2%} false "
                    f"fixes, {test.commit_rate:.3f} fixes per observation",
                    flush=True,
                )
                rules[f"{name}, seed {seed}"] = {"kind": "tspd", "controller": str(place)}
        best = rules[f"all features, seed {settings.seeds[0]}"]
        rules["all features, extrapolated"] = commit_of(f"extrapolate(tspd),{settings.extrapolation}") | {"base": best}
        rules["threshold, extrapolated"] = commit_of(f"extrapolate(threshold),{settings.extrapolation}")
        rules["threshold"] = commit_of("threshold")
        lines = {
            name: DecodeConfig.model_validate({**method_of("dual"), "commit": rule, "block_length": BLOCK})
            for name, rule in rules.items()
        }
        compare(lines, settings)


if __name__ == "__main__":
    main()
