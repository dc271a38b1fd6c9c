"""What is said of happenings, and what is kept of them."""

import pytest

from cluster.work.happenings import Lost, WorkerDied, as_record, one_line

RAY = """The actor died unexpectedly before finishing this task.
\tclass_name: GenerationWorker
\tactor_id: 61dc1e
\tpid: 4711
\tnamespace: 1ac5
\tip: 10.0.0.7
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. There are some potential root causes."""


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (RAY, "its process died (pid 4711, SYSTEM_ERROR)"),
        ("The actor died unexpectedly.\n\tpid: 12", "its process died (pid 12)"),
        ("The actor died because its node has died.\nmore", "The actor died because its node has died."),
        ("", "no reason was given"),
    ],
)
def test_a_death_is_told_in_one_short_sentence(told, said):
    assert one_line(WorkerDied(told)) == f"WorkerDied: {said}"


def test_the_event_keeps_all_that_ray_says_of_a_death():
    assert as_record(Lost("w1", WorkerDied(RAY))) == (
        "worker_lost",
        {"worker": "w1", "cause": "WorkerDied: its process died (pid 4711, SYSTEM_ERROR)", "shards": [], "told": RAY},
    )
    assert "told" not in as_record(Lost("w1", RuntimeError("x")))[1]


def test_a_worker_that_went_with_its_node_is_told_from_one_that_died_alone():
    node = WorkerDied(
        "The actor died unexpectedly before finishing this task.\n\tpid: 30677\n\tip: 192.0.2.2\n"
        "The actor died because its node has died. Node Id: 1a24\n\tthe actor's node was terminated unexpectedly"
    )
    assert (node.with_node, str(node)) == (True, "its node died (pid 30677)")
    alone = WorkerDied("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR")
    assert (alone.with_node, str(alone)) == (False, "its process died (SYSTEM_ERROR)")
