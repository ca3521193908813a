"""Calls whose arguments are grouped: tuples, lists, named tuples, dicts and frozen dataclasses of tensors and numbers.

Such a call is one of another kernel that takes the parts one by one, in order; there is one for each way of
grouping. Parts are declared by the annotations of their dataclass, or are what the argument is. Only where
the kernel is translated are they grouped again, by `GroupSpec`. The launch yields the arguments as given.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cuda_async import Tensor

from ..errors import KernelArgumentError
from ..frontend import GroupSpec
from ..frontend._aggregates import is_named_tuple, parts_of, record_fields, with_parts
from ._kernel import Kernel
from ._launch import KernelLaunch
from ._parameters import Parameter, declared_part

if TYPE_CHECKING:
    from cuda_async import Device, ExecutionContext

    from ..frontend import ParameterSpec
    from ._options import KernelOptions
    from ._variant import Variant

__all__ = ["GroupedKernel", "GroupedLaunch", "is_group", "structure_of"]

_known: dict[type, bool] = {Tensor: False, int: False, float: False, bool: False}


def is_group(value: object) -> bool:
    """True for arguments that are taken apart."""
    cls = type(value)
    if cls not in _known:
        _known[cls] = cls in (dict, list) or issubclass(cls, tuple) or record_fields(cls) is not None
    return _known[cls]


def _parts_of(value: object) -> tuple[object, ...]:
    """The parts of an argument that is a group; a kernel sees a list as a tuple."""
    parts = tuple(value) if isinstance(value, list) else parts_of(value)
    assert parts is not None
    return parts


def _leaves(value: object) -> Iterator[object]:
    if not is_group(value):
        yield value
        return
    for part in _parts_of(value):
        yield from _leaves(part)


def _rebuild(value: object, new: Iterator[object]) -> object:
    """An argument with other leaves."""
    if not is_group(value):
        return next(new)
    made = [_rebuild(part, new) for part in _parts_of(value)]
    return made if isinstance(value, list) else with_parts(value, made)


def structure_of(value: object) -> object:
    """How an argument is grouped, to be compared: None for one that is not."""
    if not is_group(value):
        return None
    keys = tuple(value) if isinstance(value, dict) else None
    return (type(value), keys, *map(structure_of, _parts_of(value)))


def _parts(kernel: str, parameter: Parameter, arg: object, annotation: object = None) -> list[Parameter]:
    """The parameters that take the parts of an argument."""
    if not is_group(arg):
        return [parameter]
    parts = _parts_of(arg)
    if parameter.kind == "constant":
        annotation = None
    names, annotations = _members(arg, parts, annotation if annotation is not None else parameter.group)
    found: list[Parameter] = []
    for name, part, own in zip(names, parts, annotations, strict=True):
        path = f"{parameter.name}{name}"
        declared = declared_part(kernel, path, own)
        if parameter.kind == "constant":
            declared = replace(parameter, name=path)
        found += _parts(kernel, declared, part, own)
    return found


def _members(arg: object, parts: tuple[object, ...], annotation: object) -> tuple[list[str], list[object]]:
    """How the parts of an argument are written after its name, and their annotations; None without one."""
    cls = type(arg)
    if isinstance(arg, dict):
        return [f"[{key!r}]" for key in arg], [None] * len(parts)
    names = cls._fields if is_named_tuple(arg) else record_fields(cls)  # type: ignore[attr-defined]
    if names is not None:
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except Exception:  # they name what is not there: then they declare nothing
            hints = {}
        return [f".{name}" for name in names], [hints.get(name) for name in names]
    given = typing.get_args(annotation)
    if len(given) == 2 and given[1] is Ellipsis:
        given = (given[0],) * len(parts)
    own: list[object] = [*given] if len(given) == len(parts) else [None] * len(parts)
    return [f"[{i}]" for i in range(len(parts))], own


def _grouped_spec(template: object, specs: Iterator[ParameterSpec]) -> ParameterSpec:
    if template is None or not is_group(template):
        return next(specs)
    parts = _parts_of(template)
    cls = type(template)
    keys = tuple(template) if isinstance(template, dict) else None
    return GroupSpec(
        None if cls in (tuple, dict, list) else cls,
        keys,
        tuple([_grouped_spec(part, specs) for part in parts]),
    )


class GroupedKernel(Kernel):
    """A kernel as it is called with arguments grouped in one way; takes their parts."""

    def __init__(self, kernel: Kernel, args: tuple[object, ...], key: tuple[object, ...]) -> None:
        """`key` has the structure of each argument that is a group."""
        super().__init__(kernel._function, kernel.options, kernel._names)
        self._whole = kernel
        # the arguments' structure with nothing in it: they are not kept
        self._templates = tuple(
            [
                None if own is None else _rebuild(arg, _new_leaves())
                for arg, own in zip(args, key, strict=True)
            ]
        )
        parameters: list[Parameter] = []
        for parameter, arg, own in zip(kernel.parameters, args, key, strict=True):
            if own is None:
                parameters.append(parameter)
                continue
            if isinstance(parameter.group, type) and not isinstance(arg, parameter.group):
                raise KernelArgumentError(
                    f"{kernel.name}: {parameter.name} is declared {parameter.declared}, got a {type(arg).__name__}"
                )
            parameters += _parts(kernel.name, parameter, arg)
        self._parameters = tuple(parameters)
        self._constants = tuple([p.kind == "constant" for p in parameters])

    def _variant(self, specs: tuple[ParameterSpec, ...], device: Device, options: KernelOptions) -> Variant:
        return self._whole._variant(self.grouped_specs(specs), device, options)

    def grouped_specs(self, specs: Sequence[ParameterSpec]) -> tuple[ParameterSpec, ...]:
        """The specs of the whole kernel's parameters, from those of the parts."""
        rest = iter(specs)
        return tuple([_grouped_spec(template, rest) for template in self._templates])

    def parts(self, args: tuple[object, ...]) -> tuple[object, ...]:
        """The arguments, those that are groups as their parts."""
        found: list[object] = []
        for arg, template in zip(args, self._templates, strict=True):
            found += [arg] if template is None else _leaves(arg)
        return tuple(found)

    def launch(self, args: tuple[object, ...]) -> GroupedLaunch:
        """The operation that launches it."""
        return GroupedLaunch(self, self.parts(args))

    def _grouped(self, args: tuple[object, ...]) -> None:
        return None

    def _regrouped(self, outputs: tuple[object, ...]) -> tuple[object, ...]:
        """What the launch yields: grouped as the arguments were."""
        rest = iter(outputs)
        return tuple([_rebuild(template, rest) for template in self._templates])


def _new_leaves() -> Iterator[object]:
    while True:
        yield object()


class GroupedLaunch(KernelLaunch):
    """A launch with grouped arguments."""

    _kernel: GroupedKernel

    def _arity(self) -> int:
        return len(self._kernel._templates)

    def execute(self, ctx: ExecutionContext) -> Any:
        from cuda_async.ops._unprepared import UNPREPARED

        outputs = super().execute(ctx)
        return outputs if outputs is UNPREPARED else self._kernel._regrouped(outputs)
