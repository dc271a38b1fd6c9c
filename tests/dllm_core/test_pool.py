from hypothesis import given
from hypothesis import strategies as st

from dllm_core.pool import Pool, Waiting
from dllm_core.request import Request


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=60))
def test_runs_never_overlap_and_what_is_given_back_can_be_taken_again(moves):
    pool, taken = Pool(100), []
    for take, n in moves:
        if take and n <= pool.largest:
            taken.append((pool.take(n), n))
        elif not take and taken:
            pool.give(*taken.pop(n % len(taken)))
        cells = [cell for first, length in taken + pool.free for cell in range(first, first + length)]
        assert sorted(cells) == list(range(100))
    for run in taken:
        pool.give(*run)
    assert pool.free == [(0, 100)]


def waiting(lengths: list[int], **options) -> Waiting:
    requests = iter([Request(str(i), [0] * n, 1) for i, n in enumerate(lengths)])
    return Waiting(lambda: next(requests, None), lambda r: "too long" if r.length > 50 else None, **options)


def taken(queue: Waiting, room: int) -> str | None:
    found = queue.take(lambda request: request.length <= room)
    return found and found[0].id


def test_the_longest_waiting_request_that_fits_enters_first():
    queue = waiting([20, 5, 4])
    assert [taken(queue, 10), taken(queue, 10), taken(queue, 10), taken(queue, 30)] == ["1", "2", None, "0"]


def test_no_more_than_the_look_ahead_is_read():
    queue = waiting([40] * 30, ahead=7)
    queue.take(lambda _: False)
    assert len(queue.queue) == 7


def test_a_long_request_is_not_passed_over_for_ever():
    queue = waiting([40] + [3] * 20, patience=4)
    assert [taken(queue, 10) for _ in range(6)] == ["1", "2", "3", "4", None, None]
    assert taken(queue, 50) == "0"
    assert taken(queue, 10) == "5"


def test_a_request_that_can_never_enter_is_answered_and_not_queued():
    queue = waiting([3, 99, 4])
    queue.fill()
    assert [request.id for request, _ in queue.queue] == ["0", "2"]
    assert [(done.id, done.error) for done in queue.answers()] == [("1", "too long")]
    assert queue.answers() == []
