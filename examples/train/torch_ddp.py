"""Data-parallel training with PyTorch. Any rank may be asked to save: all ranks then agree on the step."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast import train

SAMPLES, FEATURES, BATCH = 96, 8, 16


def any_rank(wish: bool) -> bool:
    votes = torch.tensor([int(wish)])
    dist.all_reduce(votes)
    return bool(votes.item())


torch.manual_seed(1)
dist.init_process_group("gloo")  # nccl with GPUs
run = train.start(agree=any_rank)
inputs = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(2))
outputs = torch.sin(inputs.sum(dim=1, keepdim=True))
network = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
mean_square = torch.nn.MSELoss()


def save() -> None:
    with run.checkpoint() as folder:
        torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")


if run.resumed:
    saved = torch.load(run.resumed / "state.pt", map_location="cpu")
    network.load_state_dict(saved["network"])
    optimizer.load_state_dict(saved["optimizer"])
    print(f"resumed from {run.resumed.name}", flush=True)

parallel = DistributedDataParallel(network)
for epoch in run.epochs(default=20):
    # The order depends on the epoch alone: a resumed training sees the same batches.
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
    for batch in run.batches(order.split(BATCH)):
        mine = batch[run.rank :: run.world]
        optimizer.zero_grad()
        mean_square(parallel(inputs[mine]), outputs[mine]).backward()
        optimizer.step()
        if run.due():
            save()
    with torch.no_grad():
        run.report(loss=mean_square(network(inputs), outputs))
    if run.due():
        save()

with torch.no_grad():
    print(f"loss {mean_square(network(inputs), outputs).item()}", flush=True)
dist.barrier()  # nobody leaves before rank 0 has saved
dist.destroy_process_group()
