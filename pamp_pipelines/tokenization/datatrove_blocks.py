"""Filters and formatters of datatrove as steps of a corpus. Nothing of it is imported where none is declared.

A block is called document by document, as its own pipeline does it, without executors and writers: reading, counting,
resuming and the order of the corpus stay this project's.
"""

import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pamp_pipelines.declarations.corpus import Datatrove, Filter
from pamp_pipelines.errors import InputError, install_command

_REFUSED = {
    "LambdaFilter": "it takes code, which a declaration has none of",
    "SamplerFilter": "its draws depend on the order in which documents are read; held-out documents are chosen by hash",
    "BaseFilter": "it is abstract",
    "BaseFormatter": "it is abstract",
}
_REASON = "datatrove_"


def datatrove_version(filters: Sequence[Filter]) -> str | None:
    """The installed version where a filter needs one: its blocks decide what is kept.

    Raises:
        InputError: it is not installed.
    """
    declared = [name for step in filters for name in ("datatrove", "minhash") if getattr(step, name)]
    if not declared:
        return None
    try:
        return version("datatrove")
    except PackageNotFoundError:
        raise InputError(
            f"filters: `{declared[0]}` needs datatrove, which is not installed; "
            f"`{install_command("-e '.[datatrove]'")}` installs it."
        ) from None


def datatrove_step(
    declared: Datatrove, fields: Sequence[str]
) -> "Callable[[str, Sequence[Any]], str | tuple[str] | None]":
    """A block as a step of ``filters.Filters``.

    Raises:
        InputError: no such block, arguments that it does not take, or a library or file that it needs is absent.
    """
    from datatrove.data import Document
    from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result

    block = _block(declared)
    columns = [(name, fields.index(field)) for name, field in declared.metadata.items()]
    dropped = f"{_REASON}{declared.block}"

    def about(values: Sequence[Any]) -> dict[str, Any]:
        return {name: values[index] for name, index in columns if values[index] is not None}

    def drop(text: str, values: Sequence[Any]) -> str | tuple[str]:
        document = Document(text=text, id="", metadata=about(values))
        kept, reason = get_filter_result(_calling(declared, block.filter, document))
        # some filters change what they keep: C4QualityFilter takes lines away
        return str(document.text) if kept and document.text else (f"{_REASON}{reason}" if reason else dropped,)

    def change(text: str, _: Sequence[Any]) -> str | tuple[str]:
        return str(_calling(declared, block.format, text)) or (dropped,)

    return drop if isinstance(block, BaseFilter) else change


def _block(declared: Datatrove) -> Any:
    import datatrove.pipeline.filters
    import datatrove.pipeline.formatters

    name = declared.block
    known = {
        block: getattr(module, block)
        for module in (datatrove.pipeline.filters, datatrove.pipeline.formatters)
        for block in dir(module)
        if inspect.isclass(getattr(module, block)) and block not in _REFUSED
    }
    if name in _REFUSED:
        raise InputError(f"filters: datatrove.block {name!r} cannot be used: {_REFUSED[name]}.")
    if name not in known:
        raise InputError(f"filters: datatrove.block {name!r}: no such block; there are {', '.join(sorted(known))}.")
    return _calling(declared, known[name], **declared.arguments)


def _calling(declared: Datatrove, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return call(*args, **kwargs)
    except Exception as error:  # a block may raise anything
        raise InputError(
            f"filters: datatrove.block {declared.block} with {declared.arguments}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:500]}"
        ) from error
