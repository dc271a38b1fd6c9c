"""The tiny model's problems: answers are right, nothing held out is trained on, masks are what decoding meets."""

import itertools
import re
import zlib
from random import Random

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from examples.tiny.batches import BLOCKS, CANVASES, batches, masked_positions
from examples.tiny.make_data import HELD_OUT as HELD_OUT_ROWS
from examples.tiny.make_data import others
from examples.tiny.problems import FAMILIES, HARD, PRACTICE, held_out, stream
from tests.conftest import TINY_LLADA

HELD_OUT = TINY_LLADA.parent / "held_out.parquet"
SUM = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
NAME = re.compile(r"\b(?:[BDFGJKLQRSTV][a-z]{4,})\b")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_sum_in_an_answer_is_right_and_the_last_one_is_the_answer(family):
    for example in itertools.islice(stream(1, (family,)), 300):
        sums = SUM.findall(example.answer)
        for a, sign, b, c in sums:
            right = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[sign]
            assert right == int(c) >= 0
        if sums:
            assert example.answer.endswith(f"The answer is {sums[-1][3]}.")


def test_exercises_are_right_and_no_family_is_both_trained_and_held_out():
    assert not set(PRACTICE) & set(FAMILIES)
    for example in itertools.islice(stream(4, tuple(PRACTICE)), 600):
        for a, sign, b, c in SUM.findall(example.answer):
            right = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[sign]
            assert right == int(c) >= 0
        check_list_operation(example)


def test_list_operations_do_what_they_say():
    examples = list(itertools.islice(stream(2, ("copy", "reverse", "rotate", *CHECKED)), 600))
    for example in examples:
        check_list_operation(example)
    for example in examples:
        items, done = listed(example.prompt), listed(example.answer)
        match example.family:
            case "copy":
                assert done == items
            case "reverse":
                assert done == items[::-1]
            case "rotate":
                assert done == [*items[1:], items[0]]


CHECKED = ("sort", "replace", "remove", "insert", "swap", "count_down")


def listed(text: str) -> list[str]:
    return re.findall(r"\(\d+\) ([\w ]+?)(?= \(|$)", text)


def check_list_operation(example) -> None:
    """The answer follows from the prompt; families of other kinds pass."""
    items, done, words = listed(example.prompt), listed(example.answer), example.prompt.replace(":", "").split()
    match example.family.removeprefix("short_"):
        case "sums":
            assert example.prompt == f"Work out: {re.sub(r' = [0-9]+[.]', ',', example.answer)[:-1]}"
        case "sort" | "order":
            assert done == sorted(words[3:], key=int)
        case "picks":
            asked = [int(word) - 1 for word in words[2 : words.index("of")]]
            assert example.answer == " ".join(f"({i + 1}) {items[i]}" for i in asked)
        case "letters":
            assert example.answer == " ".join(f"{name}: {' '.join(name.lower())}." for name in words[3:])
        case "replace":
            items[int(words[2]) - 1] = words[4]
            assert done == items
        case "remove":
            items[int(words[2]) - 1] = "out"
            assert done == items
        case "insert":
            place = int(words[4]) - 1
            items[place] = f"{words[1]} then {items[place]}"
            assert done == items
        case "swap":
            a, b = int(words[2]) - 1, int(words[4]) - 1
            items[a], items[b] = items[b], items[a]
            assert done == items
        case "count" | "count_down":
            start, step = (int(n) for n in re.findall(r"\d+", example.prompt))
            numbers = [int(n) for n in re.findall(r"\d+", example.answer)]
            assert numbers[0] == start
            assert 0 <= numbers[-1] < step
            assert all(a - b == step for a, b in itertools.pairwise(numbers))
            assert example.answer.endswith(" Done.")


def test_held_out_problems_are_fixed_different_and_in_equal_shares():
    examples = held_out(480)
    assert examples == held_out(480)
    assert len({e.prompt for e in examples}) == 480
    assert {f: sum(e.family == f for e in examples) for f in FAMILIES} == dict.fromkeys(FAMILIES, 20)
    assert sum(e.level == "hard" for e in examples) == 240 == 20 * len(HARD)


def test_training_never_sees_a_name_that_only_the_held_out_file_has():
    def kept(text: str) -> bool:
        return zlib.crc32(text.encode()) % 8 == 0

    days = {"Tuesday", "Thursday", "Saturday", "Friday", "Sunday", "Remove", "Reverse", "Replace", "Spell", "There"}
    trained = {n for e in itertools.islice(stream(3), 3000) for n in NAME.findall(e.prompt) if n not in days}
    asked = {n for e in held_out(480) for n in NAME.findall(e.prompt) if n not in days}
    assert not any(map(kept, trained))
    assert 0.3 < sum(map(kept, asked)) / len(asked) < 0.7


def test_the_held_out_file_is_the_one_that_the_code_makes():
    table = pq.read_table(HELD_OUT)
    made = held_out(table.num_rows)
    assert table.num_rows >= 2000
    assert table["prompt"].to_pylist() == [e.prompt for e in made]
    assert table["answer"].to_pylist() == [e.answer for e in made]
    assert table["family"].to_pylist() == [e.family for e in made]


def test_answers_have_twenty_to_a_hundred_and_sixty_tokens_with_their_end():
    tokenizer = AutoTokenizer.from_pretrained(TINY_LLADA)
    answers = tokenizer(pq.read_table(HELD_OUT)["answer"].to_pylist()).input_ids
    lengths = [len(answer) + 1 for answer in answers]
    assert min(lengths) >= 20
    assert max(lengths) <= 160
    assert sum(length > 32 for length in lengths) > len(lengths) / 2  # several blocks


def test_right_of_a_block_everything_is_masked_or_the_mask_is_uniform():
    rng, in_blocks = Random(0), 0
    for _ in range(500):
        chosen, suffix = masked_positions(rng, prompt=30, answer=50, width=160)
        assert chosen
        assert min(chosen) >= 30
        if suffix != 80 or set(range(80, 160)) <= set(chosen):  # a block pattern: all of its suffix is masked
            in_blocks += 1
            assert set(range(suffix, 160)) <= set(chosen)
            assert max((p for p in chosen if p < suffix), default=suffix) - min(chosen) < max(BLOCKS)
    assert 0.65 < in_blocks / 500 < 0.85


def test_a_batch_masks_only_what_is_to_be_generated_and_weighs_only_what_is_masked():
    tokenizer = AutoTokenizer.from_pretrained(TINY_LLADA)
    mask_id, fill = tokenizer.convert_tokens_to_ids(["<|mdm_mask|>", "<|endoftext|>"])
    for canvas, target, weight in itertools.islice(batches(tokenizer, 10_000, fill, mask_id), 4):
        assert canvas.shape[1] in CANVASES
        assert ((weight > 0) == (canvas == mask_id)).all()
        assert (canvas == target)[weight == 0].all()
        assert not (target == mask_id).any()


def test_problems_for_controllers_are_new_ones_and_none_is_held_out():
    kept_out = {example.prompt for example in held_out(HELD_OUT_ROWS)}
    found = others(300, seed=5)
    prompts = {example.prompt for example in found}
    assert len(prompts) == 300
    assert not prompts & kept_out
    assert others(300, seed=5) == found
    assert {example.prompt for example in others(300, seed=6)} != prompts
