"""Streaming conversion between Hugging Face directories and Megatron `torch_dist` checkpoints."""
