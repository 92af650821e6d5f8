"""Train the embedded engine's tokenizer: a byte-level BPE on the text of training conversations.

    python -m training.make_tokenizer

writes ``tokenizer.json`` and ``tokenizer_config.json`` into the package; a few seconds, the same files every time.
Every digit is a token of its own, so that numbers can be copied digit by digit.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.episodes import ANSWERS, pieces, system_text
from training.tasks import training_tasks

DATA = Path(__file__).parent.parent / "src" / "turnkeeper" / "tiny" / "data"
VOCAB_SIZE = 768
MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Left out when ids are decoded for reading."""
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens too, but text to a reader."""


FILLER = """
the of and to in is that it for was on are as with his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some
so these would other into has more her two like him see time could no make than first been its who now
people my made over did down only way find use may water long little very after words called just where most
know get through back much before go good new write our used me man too any day same right look think also
around another came come work three word must because does part even place well such here take why things
help put years different away again off went old number error file line test name value return user tool
message session token weather city search result question answer please thanks hello world yes
"""
"""Common English words, so that merges are left for text that is not a task."""


def main() -> None:
    """Train and write."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in (*MARKERS, *TAGS)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tasks = training_tasks(5_000, seed=0)
    conversations = ["".join(piece.text for piece in pieces(task, ANSWERS[0])) for task in tasks]
    answers = [answer.format("") for answer in ANSWERS] * 100
    tokenizer.train_from_iterator([system_text()] * 100 + answers + conversations + _filler(), trainer)
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["special"] = token["content"] in MARKERS
    (DATA / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    config = {
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (DATA / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{tokenizer.get_vocab_size()} tokens; the system message takes {len(tokenizer.encode(system_text()).ids)}")


def _filler() -> list[str]:
    words = FILLER.split()
    return [" ".join(words[start:] + words[:start]) for start in range(0, len(words), 5)] * 2


if __name__ == "__main__":
    main()
