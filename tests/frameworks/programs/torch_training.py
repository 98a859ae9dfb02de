"""Data-parallel training with PyTorch: DistributedDataParallel over gloo averages the gradients in each step."""

from functools import partial
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from tests.frameworks.programs import epochs
from tests.frameworks.programs.epochs import FEATURES, HIDDEN, MOMENTUM, RATE, ROWS, STEPS


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    network = torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    mean_square = torch.nn.MSELoss()
    inputs, outputs = data()

    def load(folder: Path) -> int:
        saved = torch.load(folder / "state.pt")
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        return int(saved["epoch"])

    def write(epoch: int, folder: Path) -> None:
        saved = {"epoch": epoch, "network": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(saved, folder / "state.pt")

    done = epochs.resume(load)
    parallel = DistributedDataParallel(network)
    for epoch in range(done + 1, epochs.EPOCHS + 1):
        order = torch.randperm(STEPS * ROWS, generator=torch.Generator().manual_seed(epoch))
        for step in epochs.steps(rank, epoch):
            rows = order[step * ROWS : (step + 1) * ROWS][rank::size]
            optimizer.zero_grad()
            mean_square(parallel(inputs[rows]), outputs[rows]).backward()
            optimizer.step()
        if rank == 0:
            epochs.save(epoch, partial(write, epoch))
    with torch.no_grad():
        loss = mean_square(network(inputs), outputs).item()
    if rank == 0:
        epochs.finish(loss)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(STEPS * ROWS, FEATURES, generator=torch.Generator().manual_seed(2))
    return inputs, torch.sin(inputs.sum(dim=1, keepdim=True))


main()
