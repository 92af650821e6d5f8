"""Train the embedded engine's weights and export them.

    pip install -e '.[training]'
    python -m training.make_tokenizer
    python -m training.train

Needs torch on a CPU, nothing else; 2.1 million tokens, about six minutes on one idle core. The same arguments
give the same weights on the same machine and torch build.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training.episodes import ANSWERS, Episode, encode_episodes, system_text
from training.muon import Muon
from training.tasks import training_tasks
from training.torch_model import Batch, TorchModel
from turnkeeper.demo.tasks import held_out_tasks
from turnkeeper.tiny.model import TinyShape, parameter_shapes

DATA = Path(__file__).parent.parent / "src" / "turnkeeper" / "tiny" / "data"
BALANCE_WEIGHT = 0.02
WARM_UP_STEPS = 50
"""The rates rise over so many steps and then stay: training ends long before they would have to fall."""
BATCHES_A_CHUNK = 8
"""How many batches are drawn and encoded together."""


def main() -> None:
    """Train for the given steps and write the weights."""
    args = _parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizer.json"))
    shape = TinyShape(eos_token_id=tokenizer.token_to_id("<|im_end|>"))
    model = TorchModel(shape, args.seed)
    prefix = torch.tensor(tokenizer.encode(system_text()).ids)
    optimizers = _build_optimizers(model, args.lr, args.muon_lr)
    probe = build_batch(encode_episodes(tokenizer, held_out_tasks(300, seed=12), seed=0))
    batches = _stream_batches(tokenizer, args.batch, args.seed)
    began, tokens = time.monotonic(), 0
    for step in range(1, args.steps + 1):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * min(step / WARM_UP_STEPS, 1.0)
        batch = next(batches)
        output = model(prefix, batch)
        loss = functional.cross_entropy(output.logits, batch.targets)
        (loss + BALANCE_WEIGHT * output.balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tokens += len(batch.ids_N)
        if step % args.report == 0 or step == args.steps:
            spread = output.loads_LE.min().item(), output.loads_LE.max().item()
            print(
                f"step {step:5} loss {loss.item():.4f} {report_probe(model, prefix, probe)} "
                f"load {spread[0]:.3f}-{spread[1]:.3f} {tokens / (time.monotonic() - began):.0f} tok/s "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
        if args.snapshot and step % args.snapshot == 0 and step < args.steps:
            export(model, args.out.with_stem(f"{args.out.stem}-{step}"))
    export(model, args.out)


def build_batch(episodes: list[Episode]) -> Batch:
    """Lay episodes out and find what is to be predicted."""
    length = max(len(episode.ids) for episode in episodes) - 1
    ids: list[int] = []
    places: list[int] = []
    selected: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    for row, episode in enumerate(episodes):
        for place, (token, following) in enumerate(pairwise(episode.ids)):
            if episode.is_trained[place + 1]:
                selected.append(len(ids))
                targets.append(following)
                owners.append(row)
            ids.append(token)
            places.append(row * length + place)
    return Batch(
        episodes=len(episodes),
        length=length,
        ids_N=torch.tensor(ids),
        places_N=torch.tensor(places),
        selected=torch.tensor(selected),
        targets=torch.tensor(targets),
        owners=torch.tensor(owners),
    )


@torch.no_grad()
def report_probe(model: TorchModel, prefix: Tensor, batch: Batch) -> str:
    """The loss on held-out episodes, and the mean probability that sampling plays one exactly so.

    Whichever final text it takes: that is left to chance in training too.
    """
    losses = functional.cross_entropy(model(prefix, batch).logits, batch.targets, reduction="none")
    sums = torch.zeros(batch.episodes).index_add(0, batch.owners, losses)
    return f"held-out loss {losses.mean().item():.4f} solve {((-sums).exp() * len(ANSWERS)).mean().item():.3f}"


def export(model: TorchModel, path: Path) -> None:
    """Write the weights as float16."""
    arrays = {name: model[name].detach().numpy().astype(np.float16) for name in parameter_shapes(model.shape)}
    save_file(arrays, path)


def _stream_batches(tokenizer: Tokenizer, size: int, seed: int) -> Iterator[Batch]:
    chunk = 0
    while True:
        tasks = training_tasks(size * BATCHES_A_CHUNK, seed=seed * 1_000_000 + chunk)
        episodes = encode_episodes(tokenizer, tasks, seed=chunk)
        for start in range(0, len(episodes), size):
            yield build_batch(episodes[start : start + size])
        chunk += 1


def _build_optimizers(model: TorchModel, lr: float, muon_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between activations, AdamW for the rest: embedding, router, norms."""
    matrices = [
        p for name, p in model.weights.items() if name.endswith(("qkv", "attn_out", "experts_in", "experts_out"))
    ]
    known = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in known]
    if not muon_lr:
        rest, matrices = [*rest, *matrices], []
    adam = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    found: list[torch.optim.Optimizer] = [adam]
    if matrices:
        found.append(Muon(matrices, lr=muon_lr))
    for optimizer in found:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return found


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1.5e-3, help="peak rate of AdamW")
    parser.add_argument("--muon-lr", type=float, default=0.006, help="peak rate of Muon; 0 trains all with AdamW")
    parser.add_argument("--report", type=int, default=50, help="steps between reports")
    parser.add_argument("--snapshot", type=int, default=0, help="steps between snapshots beside --out; 0 takes none")
    parser.add_argument("--out", type=Path, default=DATA / "weights.safetensors")
    return parser.parse_args()


if __name__ == "__main__":
    main()
