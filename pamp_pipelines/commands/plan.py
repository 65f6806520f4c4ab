"""``pamp plan``: what a run would need, before it runs."""

from pathlib import Path

import click

from pamp_pipelines.commands.command import Outcome, command, discover, open_catalog


@command("plan", short_help="Memory, layout, time, cost and disk of a run, before it runs.")
@click.argument("model")
@click.argument("config")
@click.option("--gpus", type=click.IntRange(1), help="Number of GPUs; default: the processes of the profile.")
@click.option("--gpu-type", default="H200", show_default=True, help="H200, H100, B200, A100-80GB, A100-40GB or L40S.")
@click.option("--profile", metavar="P", help="Compute profile in resources/ instead of the config's.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace a field, e.g. micro_batch_size=2."
)
def plan(
    project: Path | None,
    model: str,
    config: str,
    gpus: int | None,
    gpu_type: str,
    profile: str | None,
    overrides: tuple[str, ...],
) -> Outcome:
    """Forecast a training run of the declared MODEL with the declared training CONFIG.

    Memory is that of the fullest GPU, by part. Where the declared layout does not fit, one is proposed that does; where
    none does, the exit status is 1 and every layout that was tried says why. Time assumes the utilisation measured on
    one H200; cost needs `price_per_gpu_hour` in the profile.
    """
    from pamp_pipelines.declarations.hf_config import read_hf_config
    from pamp_pipelines.training.accelerators import accelerator
    from pamp_pipelines.training.overrides import apply_overrides, require_free
    from pamp_pipelines.training.planning import plan as forecast

    catalog = open_catalog(discover(project))
    catalog.require_pair(model, config)
    file = str(catalog.file_of("training_config", config))
    declared = apply_overrides(catalog.training_config(config), overrides, file)
    profile = profile or declared.profile
    compute = catalog.profile(profile)
    require_free(overrides, compute, str(catalog.file_of("profile", profile)))
    found = forecast(
        read_hf_config(catalog.project, catalog.model(model)),
        compute.lay_out(declared),
        gpus=gpus or compute.world_size,
        accelerator=accelerator(gpu_type),
        price_per_gpu_hour=compute.price_per_gpu_hour,
    )
    gib = 2**30
    lines = [f"{model}: {found.shape.parameters:,} parameters on {found.gpus} x {found.accelerator.name}"]
    chosen = found.proposed
    lines += [f"    does not fit: {refusal}" for refusal in found.refusals]
    if chosen is None:
        lines.append("No layout fits: take more GPUs, or a shorter sequence.")
        if smaller := found.with_bf16_state:
            lines.append(
                f"With `state_precision: bf16` (gradients and moments are rounded) {smaller.gib:.1f} GiB fit: "
                f"{smaller.words()}"
            )
    else:
        m = chosen.memory
        lines += [
            f"layout: {chosen.words()}"
            + ("" if chosen == found.declared else "  (proposed; the declared one does not fit)"),
            f"memory per GPU: {chosen.gib:.1f} of {found.usable_gib:.1f} GiB usable",
            *(
                f"    {name:<12}{count / gib:8.1f} GiB"
                for name, count in (
                    ("weights", m.weights),
                    ("gradients", m.gradients),
                    ("optimizer", m.optimizer),
                    ("activations", m.activations),
                )
            ),
        ]
    cost = "" if found.price is None else f", cost {found.price:,.2f} at {compute.price_per_gpu_hour:g} per GPU-hour"
    lines += [
        f"time: {found.seconds / 3600:.2f} h of training{cost}",
        f"memory of the machine while it saves: {found.host_bytes / 1e9:.1f} GB for {min(found.gpus, 8)} processes",
        f"disk: {found.disk_bytes / 1e9:.1f} GB: {found.checkpoints} checkpoints of "
        f"{found.checkpoint_bytes / 1e9:.2f} GB, {found.exports} exports of {found.export_bytes / 1e9:.2f} GB",
    ]
    data = {
        "parameters": found.shape.parameters,
        "gpus": found.gpus,
        "gpu_type": found.accelerator.name,
        "usable_gib": found.usable_gib,
        "fits_as_declared": chosen is not None and chosen == found.declared,
        "layout": chosen.data() if chosen else None,
        "layout_with_bf16_state": found.with_bf16_state.data() if found.with_bf16_state else None,
        "refusals": list(found.refusals),
        "seconds": found.seconds,
        "cost": found.price,
        "host_bytes": found.host_bytes,
        "disk_bytes": found.disk_bytes,
        "checkpoint_bytes": found.checkpoint_bytes,
        "export_bytes": found.export_bytes,
    }
    return Outcome(data, lines, ok=chosen is not None)
