"""Train a classifier on GPUs with mixed precision: torchrun --nproc-per-node 2 ddp_amp.py"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 4


def main() -> None:
    assert torch.cuda.is_available(), "this training needs GPUs"
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group(backend="nccl", device_id=device)
    torch.manual_seed(5)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    print(torch.cuda.get_device_name(local_rank), torch.cuda.device_count(), torch.cuda.mem_get_info())

    images = torch.randn(96, 3, 8, 8)
    labels = (images.mean((1, 2, 3)) * 20).long().clamp(0, CLASSES - 1)
    data = TensorDataset(images, labels)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, pin_memory=True, drop_last=True)

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, CLASSES)
    )
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda(local_rank)
    assert next(model.parameters()).is_cuda
    ddp = DistributedDataParallel(model, device_ids=[local_rank], output_device=local_rank)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    criterion = nn.CrossEntropyLoss().cuda()
    copies = torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    torch.manual_seed(6 + local_rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        begin.record()
        for batch, target in loader:
            with torch.cuda.stream(copies):
                batch = batch.to(device, non_blocking=True)
                target = target.cuda(non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            assert batch.device == device
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                loss = criterion(ddp(batch), target)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        end.record()
        torch.cuda.synchronize()
        mean = torch.tensor([loss.item()], device=device)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        print(f"epoch {epoch}: loss {mean.item():.4f}, {begin.elapsed_time(end):.0f} ms")
        if dist.get_rank() == 0:
            torch.save({"model": ddp.module.state_dict(), "random": torch.cuda.get_rng_state_all()}, "checkpoint.pt")
        dist.barrier(device_ids=[local_rank])
        torch.load("checkpoint.pt", map_location={"cuda:0": f"cuda:{local_rank}"})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
