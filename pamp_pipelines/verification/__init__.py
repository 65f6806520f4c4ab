"""Does a conversion or an export mean what it should: Hugging Face's model and Megatron's, on the same tokens."""
