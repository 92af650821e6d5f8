"""Compare the torch model of the training with the numpy model of the package, on the same weights.

    python -m training.parity [--checkpoint DIR]

prints the largest difference of any logit over held-out conversations, and fails above 0.001.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from training.episodes import encode_episodes, system_text
from training.torch_model import Batch, TorchModel
from turnkeeper.demo.tasks import held_out_tasks
from turnkeeper.tiny.checkpoint import TinyCheckpoint, read_weights, shipped_checkpoint
from turnkeeper.tiny.model import Chunk, TinyModel

LIMIT = 1e-3


def largest_difference(checkpoint: TinyCheckpoint, tokenizer: Tokenizer, count: int = 20) -> float:
    """The largest difference of a logit at any position of some held-out conversations."""
    torch_model = TorchModel(checkpoint.shape, seed=0)
    torch_model.load(checkpoint.weights)
    model = TinyModel(checkpoint.shape, checkpoint.weights)
    start = tokenizer.encode(system_text()).ids
    largest = 0.0
    for episode in encode_episodes(tokenizer, held_out_tasks(count, seed=3), seed=0):
        ids = np.array(start + episode.ids, np.int32)
        served = model.forward([Chunk(ids=ids, kv=model.new_kv())], every_position=True).logits[len(start) :]
        with torch.no_grad():
            trained = torch_model(torch.tensor(start), _whole(episode.ids)).logits.numpy()
        largest = max(largest, float(np.abs(served - trained).max()))
    return largest


def _whole(ids: list[int]) -> Batch:
    """One sequence with every position selected; there is nothing to be compared with, so no targets."""
    every = torch.arange(len(ids))
    return Batch(
        episodes=1,
        length=len(ids),
        ids_N=torch.tensor(ids),
        places_N=every,
        selected=every,
        targets=every,
        owners=every,
    )


def main() -> None:
    """Compare and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=shipped_checkpoint())
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    largest = largest_difference(read_weights(args.checkpoint), tokenizer)
    print(f"largest difference of a logit: {largest:.2e}")
    if largest > LIMIT:
        raise SystemExit(f"that is more than {LIMIT}")


if __name__ == "__main__":
    main()
