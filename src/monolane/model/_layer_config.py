"""What a config says of one layer."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from monolane.errors import ConfigError
from monolane.model._reduce import Reduce
from monolane.ops import Attention, LayerRotary, Operation, QkNorm

ModuleName = Literal["attention", "delta", "mlp", "experts"]
_NAMES: tuple[ModuleName, ...] = get_args(ModuleName)
MAX_MODULES = 4  # of a layer, in which each has a ring of outputs


@dataclass(frozen=True, slots=True)
class ModuleConfig:
    """A module of a layer, where the config does not say how it reads and joins the streams."""

    operation: ModuleName | Operation  # a name asks for the config's own sizes
    norm_before: bool | None = None  # None: as the config says
    norm_after: bool | None = None
    scale: float = 1.0  # of what a stream gains from it, beside the config's
    read_scale: float = 1.0  # of what attention reads: in its scores twice, in what it says once
    beside: bool = False  # it reads what the module before it reads, without what that one says
    same_norm: bool = False  # it reads by the norm of the one before it, beside which it is
    joint_norm: bool = False  # what it and the one before it say is added up, normed, and joins
    replaces: bool = False  # the streams begin anew with what it says

    @property
    def name(self) -> str:
        """Its operation's."""
        return self.operation if isinstance(self.operation, str) else type(self.operation).__name__

    def __str__(self) -> str:
        norms = (("before", self.norm_before), ("after", self.norm_after))
        said = [f"norm_{where} {there}" for where, there in norms if there is not None]
        scales = (("scale", self.scale), ("read_scale", self.read_scale))
        said += [f"{name} {value:g}" for name, value in scales if value != 1]
        flags = ("beside", "same_norm", "joint_norm", "replaces")
        said += [name for name in flags if getattr(self, name)]
        return f"{self.name} ({', '.join(said)})" if said else self.name


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What differs from layer to layer."""

    attention_reduce: Reduce
    mlp_reduce: Reduce
    window: int | None = None  # keys visible to a query, itself included; None: all before it
    rotary: LayerRotary = "main"  # which of the config's rotaries turns queries and keys, if any
    experts: bool = False  # the MLP is a mixture, of the config's ``experts``
    hashed: bool = False  # its experts are those that a table says of a token's id
    delta: bool = False  # in place of attention a gated delta rule, the config's ``delta``
    # Its modules in their order, where they are not the two that this says: what stands in place of
    # attention, then the MLP or what stands in its place. The first joins the streams by
    # ``attention_reduce``, the others by ``mlp_reduce``. A name asks for the config's own sizes;
    # any other operation is given with its sizes.
    modules: tuple[ModuleName | Operation | ModuleConfig, ...] = ()
    # Sizes of this layer's own; None: the config's.
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    keys_of: int | None = None  # the earlier layer whose keys and values it reads; None: its own
    key_is_value: bool = False  # its values are what keys are before they are normed and turned
    index_of: int | None = None  # the earlier layer whose index chooses its keys; None: its own
    # Its window does not slide: positions are cut into chunks that long, and a query sees the keys
    # of its own, itself included.
    chunked: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """The layer's own sizes, by the names of the config's."""
        names = ("num_heads", "num_kv_heads", "head_dim", "intermediate_size")
        found = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in found if value is not None}

    @property
    def listed(self) -> tuple[ModuleConfig, ...]:
        """Its modules in their order, whether it lists them or not."""
        first: ModuleName = "delta" if self.delta else "attention"
        second: ModuleName = "experts" if self.experts else "mlp"
        listed = self.modules or (first, second)
        return tuple(x if isinstance(x, ModuleConfig) else ModuleConfig(x) for x in listed)

    @property
    def given(self) -> tuple[Operation, ...]:
        """Its modules that are given with their sizes, and not by name."""
        return tuple(x.operation for x in self.listed if isinstance(x.operation, Operation))

    @property
    def module_names(self) -> str:
        """The names of its modules, and how they read and join the streams."""
        return ", ".join(map(str, self.listed))

    def check_modules(self, i: int, lanes: int) -> None:
        """Refuse modules that make no sense; ConfigError names the layer, which is the i-th."""
        if not self.modules:
            return
        listed = self.listed
        names = [x.operation for x in listed if isinstance(x.operation, str)]
        several = len({x.name.lower() for x in listed}) < len(listed)
        if several or len(listed) > MAX_MODULES or not set(names) <= set(_NAMES):
            raise ConfigError(
                f"layer {i}: modules: expected one to {MAX_MODULES} of {', '.join(_NAMES)}, or of "
                f"other operations with their sizes, one of each, got {self.module_names}"
            )
        if any(x.joint_norm and not x.beside for x in listed):
            raise ConfigError(
                f"layer {i}: modules: expected a joint norm where a module is beside another, got "
                f"{self.module_names}"
            )
        if any(x.replaces and (x.joint_norm or x.beside) for x in listed):
            raise ConfigError(
                f"layer {i}: modules: expected one that replaces the streams to be beside none, "
                f"got {self.module_names}"
            )
        if any(not 0 < scale < inf for x in listed for scale in (x.scale, x.read_scale)):
            raise ConfigError(
                f"layer {i}: modules: expected scales above 0, got {self.module_names}"
            )
        if any(x.read_scale != 1 and x.operation != "attention" for x in listed):
            raise ConfigError(
                f"layer {i}: modules: expected a read_scale of attention alone, got "
                f"{self.module_names}"
            )
        norms = [x.norm_before for x in listed]
        for own, before, x in zip(norms[1:], norms, listed[1:], strict=False):
            if x.same_norm and (not x.beside or own is not None or before is not None):
                raise ConfigError(
                    f"layer {i}: modules: expected the same norm where a module is beside another "
                    f"that is normed as the config says, got {self.module_names}"
                )
        if listed[0].beside or listed[0].same_norm:
            raise ConfigError(
                f"layer {i}: modules: expected a first one that is beside no other, got "
                f"{self.module_names}"
            )
        if lanes > 1 and (self.given or len(listed) > 2 or any(x.beside for x in listed)):
            raise ConfigError(
                f"layer {i}: modules: expected one lane with {self.module_names}, got {lanes}"
            )
        for name in ("delta", "experts"):
            if getattr(self, name) != (name in names):
                raise ConfigError(
                    f"layer {i}: {name}: expected {name in names}, as its modules are "
                    f"{self.module_names}, got {getattr(self, name)}"
                )

    def check_keys_of(self, i: int, own: Attention | None, earlier: Attention | None) -> None:
        """Refuse keys that are not there, or not this layer's; the layer is the i-th."""
        if own is None or earlier is None or earlier.keys_of is not None or self.key_is_value:
            raise ConfigError(
                f"layer {i}: keys_of: expected an earlier layer with attention and keys of its "
                f"own, for a layer with attention, got {self.keys_of}"
            )
        if own.latent is not None or own.qk_norm is QkNorm.ALL:
            raise ConfigError(
                f"layer {i}: keys_of: expected None where attention is latent, or where queries "
                f"and keys of all heads are normed as one, got {self.keys_of}"
            )
        for name in ("kv_heads", "head_dim", "window", "chunked"):
            if getattr(own, name) != getattr(earlier, name):
                raise ConfigError(
                    f"layer {i}: keys_of: expected a layer of the same {name}, "
                    f"{getattr(own, name)}, got layer {self.keys_of} with {getattr(earlier, name)}"
                )

    def check_index_of(self, i: int, own: Attention | None, earlier: Attention | None) -> None:
        """Refuse an index that is not there; the layer is the i-th."""
        there = own is not None and own.index is not None
        if not there or earlier is None or earlier.index_of is not None:
            raise ConfigError(
                f"layer {i}: index_of: expected an earlier layer with an index of its own, for a "
                f"layer with attention in a model with indices, got {self.index_of}"
            )


def layer_features(layers: Iterable[LayerConfig]) -> dict[str, str]:
    """Return what layers ask of executors beyond what all of them compute, and the values."""
    found: dict[str, set[str]] = {}
    for layer in layers:
        if layer.rotary != "main":
            found.setdefault("layers.rotary", set()).add(layer.rotary)
        if layer.chunked:
            found.setdefault("layers.chunked", set()).add("true")
        if layer.modules:
            found.setdefault("layers.modules", set()).add(layer.module_names)
        for operation in layer.given:
            name = type(operation).__name__
            found.setdefault(f"operations.{name}", set()).add(name)
        if layer.key_is_value:
            found.setdefault("layers.key_is_value", set()).add("true")
        if layer.keys_of is not None:
            found.setdefault("layers.keys_of", set()).add(str(layer.keys_of))
        if layer.hashed:
            found.setdefault("layers.hashed", set()).add("true")
        if layer.index_of is not None:
            found.setdefault("layers.index_of", set()).add(str(layer.index_of))
        for name, value in layer.sizes.items():
            found.setdefault("layers.sizes", set()).add(f"{name} {value}")
    return {name: "; ".join(sorted(values)) for name, values in found.items()}
