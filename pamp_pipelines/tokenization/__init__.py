"""From documents to token shards in Megatron's IndexedDataset format."""
