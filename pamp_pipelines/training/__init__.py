"""Pretraining on Megatron: a job in, checkpoints and metrics in a version directory out."""
