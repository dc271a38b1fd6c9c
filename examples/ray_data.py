"""The tiny model as a step of a Ray Data pipeline, on a CPU: read, answer, keep what is right, write.

    pip install "ray[data]"
    python -m examples.ray_data --output out/ray_data

A job (`jobs/generate.py`) survives and resumes by itself; take Ray Data where answering is one step among others.
"""

import argparse
import os
from pathlib import Path

import ray
import ray.data

from cluster.ray_data import DllmPredictor

HERE = Path(__file__).parent
SETTINGS = {
    "model": {"path": str(HERE / "tiny-llada"), "device": "cpu", "dtype": "float32"},
    "input": {"prompt_column": "prompt", "id_column": "id"},
    "decode": {"cache": {"kind": "dual"}, "commit": {"kind": "threshold", "tau": 0.9}, "max_new_tokens": 160},
    "engine": {"slots": 16, "width": 512, "kv_gib": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer the bundled problems in a Ray Data pipeline.")
    parser.add_argument("--output", default="out/ray_data", help="folder of the Parquet files")
    parser.add_argument("--rows", type=int, default=64, help="problems to answer")
    parser.add_argument("--actors", type=int, default=1, help="most actors, each with its own copy of the model")
    asked = parser.parse_args()
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])  # actors import this project, too
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False, include_dashboard=False)
    problems = ray.data.read_parquet(str(HERE / "held_out.parquet")).limit(asked.rows)
    answered = problems.map_batches(
        DllmPredictor,
        fn_constructor_kwargs=SETTINGS,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=asked.actors),
        num_cpus=1,
        batch_size=32,
        batch_format="pyarrow",
    ).materialize()
    right = answered.filter(lambda row: (row["generated_text"] or "").split() == row["answer"].split())
    print(f"{right.count()} of {answered.count()} answers are right")
    right.write_parquet(str(Path(asked.output).absolute()))
    ray.shutdown()


if __name__ == "__main__":
    main()
