"""The model of ``train_gpu.py`` in plain PyTorch: what somebody gets who writes it without Megatron.

    python benchmarks/pytorch_gpu.py [--micro-batch 4 8] [--steps 12]

Llama's blocks under ``torch.compile``, PyTorch's scaled-dot-product attention (cuDNN's, or FlashAttention with
``--attention flash``), float32 weights with bfloat16 autocast, fused AdamW, gradient clipping, gradient accumulation to
a global batch of 16 samples of 4096 tokens; random tokens. One JSON object for each micro batch: the median of the
steps after the first four, compilation apart.

Axes: B  samples of a micro batch, S  tokens of a sample, D  hidden size, F  width of the MLP, V  vocabulary,
      N  query heads, K  key and value heads, H  width of a head
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
from gpu_shapes import SHAPES
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

SEQUENCE, BATCH, WARM_UP = 4096, 16, 4
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def rotary_SH(length: int, width: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of Llama's rotary embedding, both halves of a head alike."""
    frequencies = base ** (-torch.arange(0, width, 2, device="cuda") / width)
    angles = torch.outer(torch.arange(length, device="cuda"), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x_BNSH: torch.Tensor, cos_SH: torch.Tensor, sin_SH: torch.Tensor) -> torch.Tensor:
    first, second = x_BNSH.chunk(2, dim=-1)
    turned_BNSH = torch.cat((-second, first), dim=-1)
    return (x_BNSH * cos_SH + turned_BNSH * sin_SH).to(x_BNSH.dtype)


class Block(nn.Module):
    """Attention with grouped keys, then SwiGLU, each after an RMSNorm and with a residual."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        hidden, width = shape["hidden_size"], shape["head_dim"]
        self.heads, self.groups, self.width = shape["num_attention_heads"], shape["num_key_value_heads"], width
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * width, bias=False)
        self.out = nn.Linear(self.heads * width, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * shape["intermediate_size"], bias=False)
        self.down = nn.Linear(shape["intermediate_size"], hidden, bias=False)

    def forward(self, x_BSD: torch.Tensor, cos_SH: torch.Tensor, sin_SH: torch.Tensor) -> torch.Tensor:
        qkv_BSNH = self.qkv(self.norm1(x_BSD)).unflatten(-1, (-1, self.width))
        qkv_BNSH = qkv_BSNH.transpose(1, 2)
        q_BNSH, k_BKSH, v_BKSH = qkv_BNSH.split((self.heads, self.groups, self.groups), dim=1)
        q_BNSH, k_BKSH = rotate(q_BNSH, cos_SH, sin_SH), rotate(k_BKSH, cos_SH, sin_SH)
        mixed_BNSH = functional.scaled_dot_product_attention(q_BNSH, k_BKSH, v_BKSH, is_causal=True, enable_gqa=True)
        x_BSD = x_BSD + self.out(mixed_BNSH.transpose(1, 2).flatten(2))
        gate_BSF, up_BSF = self.up(self.norm2(x_BSD)).chunk(2, dim=-1)
        return x_BSD + self.down(functional.silu(gate_BSF) * up_BSF)


class Model(nn.Module):
    """Embedding, blocks, and the loss over tied output weights."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape["vocab_size"], shape["hidden_size"])
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["num_hidden_layers"]))
        self.norm = nn.RMSNorm(shape["hidden_size"], eps=1e-5)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BS: torch.Tensor, cos_SH: torch.Tensor, sin_SH: torch.Tensor) -> torch.Tensor:
        x_BSD = self.embedding(tokens_BS[:, :-1]).to(torch.bfloat16)
        for block in self.blocks:
            x_BSD = block(x_BSD, cos_SH, sin_SH)
        logits_BSV = functional.linear(self.norm(x_BSD), self.embedding.weight)
        return functional.cross_entropy(logits_BSV.flatten(0, 1).float(), tokens_BS[:, 1:].flatten())


def measure(shape: dict[str, Any], rows: int, steps: int, attention: str) -> dict[str, Any]:
    """Tokens per second with a micro batch of so many rows."""
    torch.manual_seed(1)
    torch.cuda.reset_peak_memory_stats()
    with torch.device("cuda"):
        model = Model(shape)
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    rotary = rotary_SH(SEQUENCE, shape["head_dim"], shape["rope_theta"])
    micro_batches = BATCH // rows
    seconds = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        for _ in range(micro_batches):
            tokens_BS = torch.randint(0, shape["vocab_size"], (rows, SEQUENCE + 1), device="cuda")
            with sdpa_kernel(ATTENTION[attention]), torch.autocast("cuda", torch.bfloat16):
                loss = compiled(tokens_BS, *rotary)
            (loss / micro_batches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    step = statistics.median(seconds[WARM_UP:])
    return {
        "micro_batch": rows,
        "attention": attention,
        "tokens_per_second": round(BATCH * SEQUENCE / step),
        "ms_per_step": round(1e3 * step, 1),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "seconds_of_first_step": round(seconds[0], 1),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--attention", choices=list(ATTENTION), default="cudnn")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    for rows in options.micro_batch:
        try:
            found = measure(SHAPES["llama-1b-shape"], rows, options.steps, options.attention)
        except torch.OutOfMemoryError as error:
            found = {"micro_batch": rows, "error": str(error)[:300]}
        print(json.dumps(found), flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
