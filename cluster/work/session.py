"""The job's connection to Ray: a running cluster if there is one, else one of its own on this machine."""

import logging

import ray


def connect(import_path: str = "") -> None:
    """import_path: PYTHONPATH of workers; empty where they find the packages unaided (a submitted folder)."""
    if ray.is_initialized():
        return
    environment = {"env_vars": {"PYTHONPATH": import_path}} if import_path else None
    ray.init(runtime_env=environment, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)


def disconnect() -> None:
    ray.shutdown()
