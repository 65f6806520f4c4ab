"""Training samples and held-out windows as Megatron's loop wants them.

The loaders are the pipeline's own (``--dataloader-type external``), for two reasons. A torch DataLoader draws a seed
from the default generator whenever it is iterated, which on a CPU is the generator of dropout: a resumed run would
differ from an uninterrupted one. And Megatron's full validation takes one sample at a time.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.training import get_args, get_tokenizer
from megatron.training.datasets.data_samplers import MegatronPretrainingSampler
from torch.utils.data import DataLoader, Dataset

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import fsync_dir, fsync_file
from pamp_pipelines.lake.hashing import sha256_json
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.training.blend import realised, write_realised
from pamp_pipelines.training.job import DataPhase, HeldOutShards, TrainJob
from pamp_pipelines.training.loop import validate_at_the_end
from pamp_pipelines.training.telemetry import Reporter
from pamp_pipelines.training.windows import HeldOutWindows, share_of_rank

Batch = dict[str, torch.Tensor]
"""``tokens``, ``labels`` and ``position_ids`` int64, ``loss_mask`` float32, each (batch, sequence length)."""


class DatasetProvider:
    """The ``train_valid_test_dataset_provider`` of ``pretrain``, called on every rank once the checkpoint is loaded."""

    # every rank is asked, and not only the first of each tensor-parallel group: building the index has barriers
    is_distributed = True

    def __init__(self, job: TrainJob, reporter: Reporter | None) -> None:
        self.job = job
        self.reporter = reporter

    def __call__(self, samples: tuple[int, int | None, int], vp_stage: int | None = None) -> tuple[Any, Any, None]:
        """Loaders of training batches and of each held-out split; no test set.

        Args:
            samples: number of training samples of the whole run, and two numbers that do not matter here.
            vp_stage: unused; interleaved pipelines are refused.
        """
        args = get_args()
        if self.reporter:
            self.reporter.started(args.iteration)
        validate_at_the_end(args, args.iteration)
        phases = self.job.ordered
        orders = [_train_dataset(self.job.model_copy(update={"data_seed": p.seed}), p.samples) for p in phases]
        if self.reporter:
            held = [len(IndexedReader(shards.prefix).tokens) for shards in self.job.train]
            taken = [
                drawn(order, min(phase.samples, samples[0] - phase.first_sample))
                for phase, order in zip(phases, orders, strict=True)
            ]
            write_realised(self.job, realised(self.job, np.sum(taken, axis=0).tolist(), held))
        train = orders[0] if len(orders) == 1 else PhasedSamples(orders, phases)
        # other ranks get their batches from the first of their tensor-parallel group
        reads = mpu.get_tensor_model_parallel_rank() == 0
        heldout = self.job.heldout
        if not reads:
            return None, [None] * len(heldout) or None, None
        return _train_loader(self.job, train), [HeldOutLoader(self.job, shards) for shards in heldout] or None, None


def _train_dataset(job: TrainJob, samples: int) -> Dataset:
    prefixes = [str(shards.prefix) for shards in job.train]
    weights = [shards.weight for shards in job.train]
    # all that Megatron's own cache key holds: files of other inputs must not be added to a finished folder
    key = sha256_json([*prefixes, *weights, samples, job.sequence_length, job.data_seed, job.vocab_size, job.eod_id])
    tokenizer = get_tokenizer()
    return _with_index(job.run_dir / "index" / key[:12], lambda index: blended(job, samples, tokenizer, index))


def blended(job: TrainJob, samples: int, tokenizer: Any, index: Path) -> Dataset:
    """Megatron's blend of GPT datasets: shuffled samples of consecutive tokens, drawn by weight.

    Args:
        job: its shards and weights, sequence length, data seed and ``document_attention``.
        samples: that the order is made for.
        tokenizer: says which token ends a document.
        index: folder of the index files, written where it lacks them.
    """
    total = sum(shards.weight for shards in job.train)
    masked = job.document_attention == "masked"
    config = GPTDatasetConfig(
        random_seed=job.data_seed,
        sequence_length=job.sequence_length,
        blend_per_split=[
            ([str(shards.prefix) for shards in job.train], [shards.weight / total for shards in job.train]),
            None,
            None,
        ],
        path_to_cache=str(index),
        tokenizer=tokenizer,
        # the three belong together; what attention may see follows from the positions: see forward.py
        reset_position_ids=masked,
        reset_attention_mask=masked,
        eod_mask_loss=masked,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [samples, None, None], lambda: True, config).build()[0]


def drawn(dataset: Any, samples: int) -> list[int]:
    """How many of the first samples come from each pair of shards."""
    if not hasattr(dataset, "dataset_index"):
        return [samples]  # one pair has no blend around it
    return np.bincount(dataset.dataset_index[:samples], minlength=len(dataset.datasets)).tolist()


def _with_index(final: Path, build: Callable[[Path], Dataset]) -> Dataset:
    """Builds with the sample index at ``final``, which is either absent or complete.

    Megatron writes index files in place and trusts any that it finds, so that a killed run could never start again.
    """
    distributed = torch.distributed
    # one answer for all: ranks must not take different branches while rank 0 renames
    complete = [final.is_dir()]
    distributed.broadcast_object_list(complete, src=0)
    if complete[0]:
        return build(final)
    building = final.with_name(f".{final.name}.building")
    if distributed.get_rank() == 0:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
    distributed.barrier()
    dataset = build(building)
    distributed.barrier()
    if distributed.get_rank() == 0:
        for path in building.iterdir():
            fsync_file(path)
        building.rename(final)
        fsync_dir(final.parent)
    distributed.barrier()
    return dataset


class PhasedSamples(Dataset):
    """The samples of each data phase, one phase after the other."""

    def __init__(self, orders: Sequence[Dataset], phases: Sequence[DataPhase]) -> None:
        self.orders = orders
        self.firsts = [phase.first_sample for phase in phases]
        self.samples = phases[-1].first_sample + phases[-1].samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        phase = bisect_right(self.firsts, index) - 1
        return self.orders[phase][index - self.firsts[phase]]


class _Samples(Dataset):
    """The items of a Megatron dataset that the forward step uses."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Batch:
        item = self.dataset[index]
        return {key: item[key] for key in ("tokens", "labels", "loss_mask", "position_ids")}


def _train_loader(job: TrainJob, dataset: Any) -> Iterator[Batch]:
    args = get_args()
    sampler = MegatronPretrainingSampler(
        total_samples=len(dataset),
        consumed_samples=args.consumed_train_samples,
        micro_batch_size=job.micro_batch_size,
        data_parallel_rank=mpu.get_data_parallel_rank(),
        data_parallel_size=mpu.get_data_parallel_world_size(),
    )
    return iter(
        DataLoader(
            _Samples(dataset),
            batch_sampler=sampler,
            num_workers=args.num_workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=args.num_workers > 0,
            # its own generator: iterating must not move the one of dropout
            generator=torch.Generator().manual_seed(job.data_seed),
        )
    )


def heldout_windows(job: TrainJob, shards: HeldOutShards) -> HeldOutWindows:
    """The windows of one held-out split.

    Raises:
        InputError: the shards cannot be read, or hold nothing to predict.
    """
    windows = HeldOutWindows(IndexedReader(shards.prefix).tokens, job.sequence_length)
    if not len(windows):
        raise InputError(f"{shards.prefix}.bin: the held-out split of {shards.corpus} has nothing to predict")
    return windows


def heldout_tokens(job: TrainJob) -> dict[str, int]:
    """Predicted tokens of each held-out split, by corpus."""
    return {shards.corpus: heldout_windows(job, shards).predicted_tokens for shards in job.heldout}


class HeldOutLoader:
    """All windows of one held-out split, in the same order each time it is iterated.

    ``len`` is the number of evaluation iterations; each takes one micro batch per pipeline stage.
    """

    def __init__(self, job: TrainJob, shards: HeldOutShards) -> None:
        self.windows = heldout_windows(job, shards)
        self.micro_batches = job.parallelism.pipeline
        self.batches = share_of_rank(
            len(self.windows),
            rank=mpu.get_data_parallel_rank(),
            ranks=mpu.get_data_parallel_world_size(),
            batch=job.micro_batch_size * self.micro_batches,
        )

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for numbers in self.batches:
            for part in np.array_split(np.asarray(numbers), self.micro_batches):
                windows = [self.windows[int(number)] for number in part]
                yield {
                    "tokens": torch.from_numpy(np.stack([window.tokens_S for window in windows])),
                    "labels": torch.from_numpy(np.stack([window.labels_S for window in windows])),
                    "loss_mask": torch.from_numpy(np.stack([window.loss_mask_S for window in windows])),
                    # a window is one document, however many it holds: see windows.py
                    "position_ids": torch.arange(self.windows.sequence_length).expand(len(windows), -1),
                }
