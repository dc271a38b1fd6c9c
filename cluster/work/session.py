"""The job's connection to Ray: a running cluster if there is one, else one of its own on this machine."""

import logging

import ray

from dllm_core.errors import ConfigError


def connect(import_path: str = "", address: str | None = None) -> None:
    """import_path: PYTHONPATH of workers; empty where they find the packages unaided (a submitted folder). address:
    of a cluster, or `local` for one of our own; None = as Ray decides, by RAY_ADDRESS or by what runs here.

    Raises ConfigError where a cluster is named and does not answer.
    """
    if ray.is_initialized():
        return
    environment = {"env_vars": {"PYTHONPATH": import_path}} if import_path else None
    try:
        ray.init(
            address=address, runtime_env=environment, include_dashboard=False, logging_level=logging.ERROR,
            log_to_driver=False,
        )  # fmt: skip
    except ConnectionError as error:
        raise ConfigError(
            f"the Ray cluster {address or 'that RAY_ADDRESS names'} does not answer ({str(error).splitlines()[0]}); "
            "start it, or unset RAY_ADDRESS for a job on this machine alone"
        ) from error


def disconnect() -> None:
    ray.shutdown()
