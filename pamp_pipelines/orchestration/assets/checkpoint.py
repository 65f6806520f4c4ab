"""`checkpoint`: an external asset, reported by training runs as their checkpoints appear."""

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import checkpoints


def checkpoint_spec(catalog: Catalog) -> dg.AssetSpec:
    return dg.AssetSpec(
        "checkpoint",
        # Every run may add checkpoints; which run made which is in the manifest, since no mapping relates static to
        # dynamic keys.
        deps=[dg.AssetDep("pretrained_checkpoint", partition_mapping=dg.AllPartitionMapping())],
        partitions_def=checkpoints,
        group_name="training",
        kinds={"megatron", "pytorch"},
        owners=owners(catalog.training_configs.values()),
        metadata=code_references(catalog, "model", "training_config"),
        description=(
            "A kept checkpoint of a training run: `model/training_config/version/step`, immutable.\n\n"
            'Step 0 of an imported model is the imported checkpoint, so that "before" is scored by the same path. '
            "Rolling resume points of a run are not listed. The partitions are added by `pretrained_checkpoint` while "
            "it trains."
        ),
    )
