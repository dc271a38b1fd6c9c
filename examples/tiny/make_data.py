"""Write the held-out file; or, if asked, other problems; or a tokenizer.

    python -m examples.tiny.make_data --held-out examples/held_out.parquet
    python -m examples.tiny.make_data --others out/prompts.parquet --rows 2000 --seed 5
    python -m examples.tiny.make_data --tokenizer /tmp/new-tokenizer

A model is bound to its tokenizer: a new one needs a new training. The one in `examples/tiny-llada` was made by this
file when the families were wider (two-digit summands, lists of up to 14), so making it anew gives other merges.
"""

import argparse
import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.tiny.problems import FAMILIES, Example, held_out, stream

VOCABULARY = 1024  # byte alphabet, specials, and what the template words and syllables need
HELD_OUT = 2400
SPECIALS = [
    "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]  # fmt: skip
# LLaDA's own template, Llama-3 style
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ ('<|startoftext|>' if loop.first else '') + '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def train_tokenizer(examples: int = 20_000) -> PreTrainedTokenizerFast:
    """Byte-level BPE, digits one by one, so that any text has ids and numbers are read digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    pieces = Regex(r"\p{N}| ?[^\s\p{L}\p{N}]+| ?\p{L}+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    texts = (text for e in itertools.islice(stream(seed=0), examples) for text in (e.prompt, e.answer))
    tokenizer.train_from_iterator(itertools.chain(texts, ["user", "assistant", "system", "\n\n"] * 1000), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIALS[0], eos_token=SPECIALS[1], pad_token=SPECIALS[1],
        mask_token=SPECIALS[2], additional_special_tokens=SPECIALS[3:], clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    return fast


def others(count: int, seed: int) -> list[Example]:
    """`count` different problems as the model is trained on, none of them held out; to train controllers on."""
    taken, found = {example.prompt for example in held_out(HELD_OUT)}, dict[str, Example]()
    for example in stream(seed):
        if len(found) == count:
            break
        if example.prompt not in taken:
            found.setdefault(example.prompt, example)
    return list(found.values())


def write(file: Path, examples: list[Example]) -> None:
    table = pa.table(
        {
            "id": [f"{e.family}-{i:04d}" for i, e in enumerate(examples)],
            "prompt": [e.prompt for e in examples],
            "answer": [e.answer for e in examples],
            "family": [e.family for e in examples],
            "level": [e.level for e in examples],
        }
    )
    pq.write_table(table, file, row_group_size=600)  # several groups: shards can start inside the file
    print(f"{table.num_rows} problems in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the held-out file; or other problems; or a tokenizer.")
    parser.add_argument("--tokenizer", type=Path, help="folder that gets a new tokenizer")
    parser.add_argument("--held-out", type=Path, default=Path("examples/held_out.parquet"))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="of the held-out file")
    parser.add_argument("--others", type=Path, help="file that gets other problems; the held-out file is left alone")
    parser.add_argument("--rows", type=int, default=2000, help="how many others")
    parser.add_argument("--seed", type=int, default=5, help="of the others")
    arguments = parser.parse_args()
    if arguments.others is not None:
        write(arguments.others, others(arguments.rows, arguments.seed))
        return
    if arguments.tokenizer is not None:
        train_tokenizer().save_pretrained(arguments.tokenizer)
    write(arguments.held_out, [e for e in held_out(HELD_OUT) if e.family in arguments.families])


if __name__ == "__main__":
    main()
