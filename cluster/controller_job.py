"""The life of a job that trains a controller: known answers -> roll-outs -> traces -> training -> the controller.

    reference/                 the known answers: an ordinary job, one token per step
    prompts/, rollouts/<name>  prompts with known answers, and the jobs that decode them and record
    traces/first, traces/all   one row per observation; first: before there was a student
    training/first, ...        what a training has reached
    first/, controller/        the controllers
    ce.json                    noise for confidence extrapolation, where it was asked for

Each phase is skipped where its result stands, so the same command goes on with what was stopped or killed. Decoding
is done by jobs like any other; only the training runs in the driver.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from cluster import fingerprint
from cluster.config import InputConfig, JobConfig, RecordConfig
from cluster.errors import PlanError
from cluster.job import Job
from cluster.known_answers import ANSWER, chosen_for, known_answers, rollout_input, write_prompts
from cluster.prospect import Prospect, examine
from cluster.result import CONFIG, Result
from cluster.schema import TRACE_FIELDS
from cluster.screens import Screen
from cluster.traces import ID as TRACE_ID
from cluster.traces import PARTS, ROLLOUT, as_observations, observation_rows, read_traces, write_traces
from cluster.train_config import TrainJobConfig
from cluster.wording import counted
from cluster.work.worker import EngineFactory, load_engine
from cluster.writing.storage import LocalStorage
from dllm_core.controller import folder
from dllm_core.train.confidence_noise import fitted_noise
from dllm_core.train.fit import EpochReport
from dllm_core.train.trained import train

NOISE = "ce.json"
FIRST, ALL = "first", "all"  # traces without and with those of the student
Connect = Callable[[], None]


class ControllerJob:
    """One run of the command."""

    def __init__(
        self,
        config: TrainJobConfig,
        check_stop: Callable[[], None] = lambda: None,
        make_engine: EngineFactory = load_engine,
    ) -> None:
        """Raises ConfigError for what can be known before anything is decoded; writes nothing."""
        self.config, self.check_stop, self.make_engine = config, check_stop, make_engine
        self.root = Path(config.output.path)
        self.storage = LocalStorage(self.root)
        self.reference = examine(self._reference_config())
        config.decode.cache.build(config.decode.block_length).refuse_unfit(self.reference.model.shape)  # the roll-outs'
        self.fingerprint = {
            **self.reference.fingerprint,
            **{name: getattr(config, name).model_dump(mode="json") for name in ("decode", "rollouts", "controller")},
        }
        fingerprint.check(self.storage, self.fingerprint)

    def run(self, connect: Connect, screen: Screen) -> Path:
        """The controller's folder. connect: make Ray ready; it is not called where nothing is left to decode."""
        place, first = self.root / "controller", self.root / FIRST
        if (place / folder.CARD).is_file():
            return place
        self._begin()
        answers = self._known_answers(connect, screen)
        tables = self._rolled_out(["oracle", "threshold"], answers, connect, screen)
        if self.config.rollouts.student > 0:
            if not (first / folder.CARD).is_file():
                self._train(FIRST, tables, first, screen)
            tables += self._rolled_out(["student"], answers, connect, screen)
        self._train(ALL, tables, place, screen)
        return place

    def fit_noise(self) -> dict[str, float | str]:
        """Settings of the commit rule `extrapolate`, fitted to the traces that train and written to ce.json; after
        `run`.
        """
        seen = as_observations(read_traces(self.storage, f"traces/{ALL}", "train"))
        try:
            noise, count = fitted_noise(seen)
        except ValueError as error:
            raise PlanError(f"the traces are too short to fit noise to: {error}") from error
        found: dict[str, float | str] = {"space": "logit", **asdict(noise)}
        self.storage.replace(NOISE, (json.dumps({**found, "series": count}, indent=2) + "\n").encode())
        return found

    def _begin(self) -> None:
        fingerprint.save(self.storage, self.fingerprint)
        shown = self.config.model_dump(mode="json")
        self.storage.replace(CONFIG, yaml.safe_dump(shown, sort_keys=False).encode())

    def _reference_config(self) -> JobConfig:
        return self.config.generating(str(self.root / "reference"), self.config.input, {"kind": "top_k"})

    def _run(self, prospect: Prospect, title: str, connect: Connect, screen: Screen) -> None:
        screen.say(f"{title}: {counted(prospect.plan.rows, 'prompt')}")
        summary = Job(prospect, self.make_engine, self.check_stop).run(connect, screen)
        per_forward = f"{summary.tokens_per_forward:.2f} tokens per forward"
        screen.say(f"{title}: done, {per_forward}, {counted(summary.total.errors, 'error')}")

    def _known_answers(self, connect: Connect, screen: Screen) -> pa.Table:
        self._run(self.reference, "known answers", connect, screen)
        answers = known_answers(Result(str(self.root / "reference"), self.config.s3), self.reference.plan.schema.names)
        if not len(answers):
            raise PlanError(f"no prompt of {', '.join(self.config.input.paths)} has an answer to learn from")
        return answers

    def _rolled_out(self, names: list[str], answers: pa.Table, connect: Connect, screen: Screen) -> list[pa.Table]:
        """Observations of these roll-outs, those of them that have a share."""
        tables = []
        for name in names:
            prompts = chosen_for(answers, name, self.config.rollouts)
            if getattr(self.config.rollouts, name) and len(prompts):
                file = f"prompts/{name}.parquet"
                write_prompts(self.storage, file, prompts)
                input = rollout_input(self.config.input, str(self.root / file))
                self._run(examine(self._rollout_config(name, input)), f"roll-out {name}", connect, screen)
                tables.append(self._observations(name))
        return tables

    def _rollout_config(self, name: str, input: InputConfig) -> JobConfig:
        kind = self.config.controller.kind
        rules: dict[str, dict[str, object]] = {
            "oracle": {"kind": "top_k"},  # says nothing: the oracle decides
            "threshold": {"kind": "threshold", "tau": self.config.rollouts.tau},
            "student": {"kind": kind, "controller": str(self.root / FIRST), "delta": None},  # its own,
        }
        record = RecordConfig(reference_column=ANSWER, oracle=name == "oracle")
        return self.config.generating(str(self.root / "rollouts" / name), input, rules[name], record)

    def _observations(self, rollout: str) -> pa.Table:
        result = Result(str(self.root / "rollouts" / rollout), self.config.s3)
        prefix = result.config.output.column_prefix
        return observation_rows(result.read(trace_columns(prefix)), rollout, prefix)

    def _train(self, which: str, tables: list[pa.Table], place: Path, screen: Screen) -> None:
        """Write the traces, train on them, and give the controller its folder, whole."""
        write_traces(self.storage, f"traces/{which}", tables)
        parts = {part: read_traces(self.storage, f"traces/{which}", part) for part in PARTS}
        for part, rows in parts.items():
            if not len(rows):
                raise PlanError(
                    f"no prompt fell into the {part} part, which a hash of its id decides; give more prompts"
                )
        model, decode = self.reference.model, self.config.decode
        card = self.config.controller.card(model.shape, decode.block_length)
        unfinished = self.root / "_run" / f"{place.name}-unfinished"

        def told(report: EpochReport) -> None:
            self.check_stop()
            epochs, now = self.config.controller.epochs, report.gauge
            if report.epoch % max(1, epochs // 10) == 0:
                screen.say(
                    f"epoch {report.epoch} of {epochs}: loss {report.loss:.4f}; validation: delta {now.delta:g}, "
                    f"{now.false_fixes:.2%} false fixes, {now.commit_rate:.3f} fixes per observation"
                )

        screen.say(f"training on {counted(len(parts['train']), 'observation')}")
        train(
            card,
            self.config.controller,
            {part: as_observations(rows) for part, rows in parts.items()},
            self._data(parts["train"]),
            self.root / "training" / f"{place.name}.safetensors",
            unfinished,
            told,
        )
        if place.exists():
            raise PlanError(f"{place} is there and is no controller; move it away and give the same command again")
        unfinished.rename(place)

    def _data(self, rows: pa.Table) -> dict[str, Any]:
        """What the card says of the traces."""
        shares = pc.value_counts(rows[ROLLOUT]).to_pylist()
        prompts = pc.count_distinct(rows[TRACE_ID].cast(pa.string())).as_py()
        return {
            "model": Path(self.config.model.path).name,
            "dtype": self.config.model.dtype,
            "prompts": ", ".join(Path(path).name for path in self.config.input.paths),
            "prompts that train": prompts,
            "roll-outs": ", ".join(f"{each['counts']:,} observations by {each['values']}" for each in shares),
            "threshold's tau": self.config.rollouts.tau,
            "caches": f"{self.config.decode.reference_cache.kind} of the known answers, "
            f"{self.config.decode.cache.kind} of the roll-outs",
            "answer length": self.config.decode.max_new_tokens,
        }


def trace_columns(prefix: str) -> list[str]:
    return [prefix + name for name in ("request_id", *TRACE_FIELDS.names)]
