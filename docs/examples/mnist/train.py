"""A small network that recognises digits, with an evaluation after each epoch.

The images are made here: each digit is a drawing of seven segments, moved and with noise. Your own script
reads its data set instead. Run it with `torchrun train.py` below the agent.
"""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
import trainyard
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SEGMENTS = [
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
]
PLACES = [
    (4, 9, 2, 10),
    (4, 9, 10, 2),
    (4, 17, 10, 2),
    (13, 9, 2, 10),
    (14, 9, 10, 2),
    (14, 17, 10, 2),
    (22, 9, 2, 10),
]


def images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (count, 1, 28, 28) and their digits."""
    generator = torch.Generator().manual_seed(seed)
    digits = torch.randint(10, (count,), generator=generator)
    drawn = torch.zeros(10, 28, 28)
    for digit, segments in enumerate(SEGMENTS):
        for lit, (top, left, height, width) in zip(segments, PLACES, strict=True):
            drawn[digit, top : top + height, left : left + width] = float(lit)
    moves = torch.randint(-3, 4, (count, 2), generator=generator).tolist()
    moved = [torch.roll(drawn[digit], move, (0, 1)) for digit, move in zip(digits.tolist(), moves, strict=True)]
    noise = 0.5 * torch.randn(count, 28, 28, generator=generator)
    return (torch.stack(moved) + noise).unsqueeze(1), digits


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU())
        self.named = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.named(self.seen(pictures))


def evaluate(model: nn.Module, device: torch.device) -> float:
    """Return the share of unseen digits that are recognised."""
    unseen, digits = images(256, seed=2)
    model.eval()
    with torch.no_grad():
        right = model(unseen.to(device)).argmax(dim=1).cpu() == digits
    model.train()
    return right.float().mean().item()


def train(args: argparse.Namespace, rank: int, ranks: int) -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    pictures, digits = images(args.images, seed=1)
    torch.manual_seed(1)
    model = Network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    torch.manual_seed(100 + rank)  # every rank drops other values
    per_epoch = args.images // (args.batch_size * ranks)
    done = 0

    found = trainyard.latest()
    if found is not None:
        state = found.state
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if found.own is not None:
            torch.set_rng_state(found.own["rng"])
        done = found.step
        print(f"continuing after step {done}", flush=True)

    parallel = DistributedDataParallel(model) if ranks > 1 else model
    while done < args.epochs * per_epoch:
        epoch, batch = divmod(done, per_epoch)
        order = list(range(args.images))
        random.Random(epoch).shuffle(order)  # the same order in each attempt and on each rank
        chosen = order[(batch * ranks + rank) * args.batch_size :][: args.batch_size]
        guessed = parallel(pictures[chosen].to(device))
        loss = nn.functional.cross_entropy(guessed, digits[chosen].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        trainyard.report(done, steps=args.epochs * per_epoch, loss=loss, epoch=done / per_epoch)
        time.sleep(args.pause)
        if done % per_epoch == 0:
            with trainyard.during("evaluating"):
                accuracy = evaluate(model, device)
            if rank == 0:
                print(f"epoch {epoch + 1}: {accuracy:.1%} of the unseen digits are right", flush=True)
        if done % per_epoch == 0 or trainyard.stopping():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            trainyard.save(state, done, own={"rng": torch.get_rng_state()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="images of one rank in a step")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to watch")
    args = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args, rank, ranks)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
