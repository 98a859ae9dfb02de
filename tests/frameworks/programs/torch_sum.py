"""A worker that joins the others through PyTorch and prints the sum of what each brings: its rank and a number."""

import sys

import torch
import torch.distributed

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
total = torch.tensor([int(sys.argv[1]) + rank])
torch.distributed.all_reduce(total)
sys.stdout.write(f"worker {rank} of {torch.distributed.get_world_size()}: {total.item()}\n")
torch.distributed.destroy_process_group()
