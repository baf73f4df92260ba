"""The library of job profiles: load it, look a model up, give each job of a workload its profile.

It knows names, files and shares. How long an iteration takes on a placement is another module's
matter, and how the shipped numbers came about is `tools/derive_profiles.py`'s.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.job import Demand, Profile, Workload

__all__ = ["SCHEMA", "Band", "ModelMix", "ProfileLibrary", "assign", "load_library"]

SCHEMA = "hemiola.profiles/1"
_SHIPPED = Path(__file__).parent / "data" / "profiles.json"
_BATCH = re.compile(r"\s*\(batch size \d+\)\s*$", re.IGNORECASE)


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of models among the jobs of at least `from_gpus` GPUs (relative weights)."""

    from_gpus: int
    shares: dict[str, float]


class ModelMix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which models jobs run: bands by ascending `from_gpus`, the first from 1."""

    about: str
    bands: tuple[Band, ...]

    def __post_init__(self) -> None:
        starts = [band.from_gpus for band in self.bands]
        if starts[:1] != [1] or starts != sorted(set(starts)):
            raise InputError(
                f"mix {self.about!r}: bands start at {starts}", "let them ascend from 1, each once"
            )
        for band in self.bands:
            weights = list(band.shares.values())
            if not weights or min(weights) < 0 or not 0 < math.fsum(weights) < math.inf:
                raise InputError(
                    f"mix {self.about!r}: shares {band.shares}", "give weights >= 0, one above 0"
                )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of profiles, as written by people or by `tools/derive_profiles.py`."""

    schema: str
    profiles: tuple[Profile, ...] = ()
    about: str = ""
    aliases: dict[str, str] = {}
    mixes: dict[str, ModelMix] = {}


class ProfileLibrary:
    """Profiles by name.

    A name is "source/model". Case, '-', '_', spaces and dots do not matter in a look-up, nor does
    what stands after an '@' (Titan's data set). "model" alone finds the first source that has it;
    without a batch size, the (lower) middle one of that source's. An alias goes before both.

    Args:
        profiles: in order of precedence, names unique.
        aliases: other names of models, each of a profile's name.
        mixes: by name, over profiles that are in the library.

    Raises:
        InputError: a name twice, or one that is not there.
    """

    def __init__(
        self, profiles: Iterable[Profile], aliases: Mapping[str, str] | None = None,
        mixes: Mapping[str, ModelMix] | None = None,
    ) -> None:  # fmt: skip
        self.profiles = tuple(profiles)
        self._by_name = {profile.name: profile for profile in self.profiles}
        if len(self._by_name) < len(self.profiles):
            names = [profile.name for profile in self.profiles]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InputError(f"profiles named twice: {', '.join(twice)}", "rename one of each")
        self._index = _index(self.profiles)
        self.aliases = dict(aliases or {})
        self.mixes = dict(mixes or {})
        self._alias = dict(self._known_aliases())
        for mix in self.mixes.values():
            self._profiles_of(mix)

    @property
    def names(self) -> tuple[str, ...]:
        """Every profile's full name."""
        return tuple(self._by_name)

    def find(self, model: str, *, source: str = "") -> Profile | None:
        """The profile of a model as a trace names it, or None.

        Args:
            model: "gpt2", "GPT-2", "ResNet-50 (batch size 64)", "vit-large@food101", "muri/vgg16".
            source: prefer this source's profile where several have the model ("pollux").

        >>> load_library().find("GPT-2").name
        'muri/gpt2'
        """
        if model in self._by_name:
            return self._by_name[model]
        for key in filter(None, (_normal(model), _normal(_base(model)))):
            if key in self._alias:
                return self._alias[key]
            found = self._index.get(key)
            if found:
                return next((p for p in found if source and p.name.startswith(f"{source}/")), found[0])
        return None

    def mix(self, mix: str | Mapping[str, float]) -> ModelMix:
        """A named mix, the text "gpt2=0.3+vgg16=0.7", or shares by model, with full names in it.

        Raises:
            InputError: an unknown mix or model, a share that is no number.
        """
        if isinstance(mix, str) and mix in self.mixes:
            return self.mixes[mix]
        shares = _parse_shares(mix, self.mixes) if isinstance(mix, str) else dict(mix)
        chosen: dict[str, float] = {}
        for model, share in shares.items():
            name = self._known(model).name
            chosen[name] = chosen.get(name, 0.0) + share
        about = "+".join(f"{model}={share:g}" for model, share in shares.items())
        return ModelMix(about, (Band(1, chosen),))

    def _known(self, model: str) -> Profile:
        profile = self.find(model)
        if profile is None:
            raise InputError(f"no profile of {model!r}", f"known: {', '.join(self.names)}")
        return profile

    def _profiles_of(self, mix: ModelMix) -> list[list[Profile]]:
        return [[self._known(name) for name in band.shares] for band in mix.bands]

    def _known_aliases(self) -> Iterator[tuple[str, Profile]]:
        for alias, name in self.aliases.items():
            if name not in self._by_name:
                raise InputError(
                    f"alias {alias!r} names no profile: {name!r}", f"known: {', '.join(self.names)}"
                )
            yield _normal(alias), self._by_name[name]

    def draw(self, mix: ModelMix, gpus: np.ndarray, uniform: np.ndarray) -> list[Profile]:
        """A profile for each job: the inverse of its band's cumulative shares.

        Args:
            mix: one of this library's profiles.
            gpus: int64[n], the jobs' GPUs.
            uniform: float64[n] in [0, 1).
        """
        picked = np.empty(len(gpus), dtype=object)
        starts = [band.from_gpus for band in mix.bands]
        band_of = np.searchsorted(starts, gpus, side="right") - 1
        for i, profiles in enumerate(self._profiles_of(mix)):
            here = band_of == i
            edges = np.cumsum(list(mix.bands[i].shares.values()))
            choice = np.searchsorted(edges[:-1] / edges[-1], uniform[here], side="right")
            picked[here] = np.array(profiles, dtype=object)[choice]
        return list(picked)


def load_library(path: str | None = None) -> ProfileLibrary:
    """The shipped profiles, with those of the user's file before them (and in place of namesakes).

    A shipped alias gives way where the file calls something of its own so.

    Args:
        path: JSON, {"schema": "hemiola.profiles/1", "profiles": [...], "aliases": {...}, "mixes": {...}}.

    Raises:
        InputError: no such file, not such a file, an unknown field, a value out of range.
    """
    shipped = _read(_SHIPPED)
    if path is None:
        return ProfileLibrary(shipped.profiles, shipped.aliases, shipped.mixes)
    own = _read(Path(path))
    taken = {profile.name for profile in own.profiles}
    rest = tuple(profile for profile in shipped.profiles if profile.name not in taken)
    called = {*_index(own.profiles), *map(_normal, own.aliases)}
    others = {alias: name for alias, name in shipped.aliases.items() if _normal(alias) not in called}
    return ProfileLibrary(own.profiles + rest, others | own.aliases, shipped.mixes | own.mixes)


def assign(
    workload: Workload, library: ProfileLibrary, *, mix: str | Mapping[str, float] = "default", seed: int
) -> Workload:
    """Give each job its profile: its model's where the trace names a known one, else one from the mix.

    A job that has a profile keeps it. One uniform number is drawn per job, in order, needed or not,
    so that a job's draw depends on the seed and its place alone. A model that was measured on one
    GPU only says nothing of several: such a job is drawn too.

    Args:
        workload: its format says which source's profile a model's bare name means.
        library: where profiles and mixes come from.
        mix: a name, "gpt2=0.3+vgg16=0.7", or shares by model; "none" takes every profile away, so
            that all placements are equally fast.
        seed: of NumPy's PCG64.

    Raises:
        InputError: an unknown mix or model; a mix that draws a one-GPU model for a larger job.
    """
    replace = msgspec.structs.replace
    if mix == "none":
        bare = tuple(replace(job, profile=None) if job.profile else job for job in workload.jobs)
        return replace(workload, jobs=bare, notes=(*workload.notes, "profiles: none (mix 'none')"))
    chosen = library.mix(mix)
    uniform = np.random.Generator(np.random.PCG64(seed)).random(len(workload.jobs))
    gpus = np.fromiter((job.gpus for job in workload.jobs), np.int64, len(workload.jobs))
    named = _by_model(workload, library)
    jobs, counts = [], {"kept": 0, "named": 0, "drawn": 0}
    for job, drawn in zip(workload.jobs, library.draw(chosen, gpus, uniform), strict=True):
        known = named[job.model]
        if job.profile is not None:
            counts["kept"] += 1
            jobs.append(job)
        elif known is not None and _covers(known, job.gpus):
            counts["named"] += 1
            jobs.append(replace(job, profile=known))
        else:
            counts["drawn"] += 1
            _check_covers(drawn, job.id, job.gpus)
            jobs.append(replace(job, profile=drawn))
    note = _note(mix, chosen, counts, seed)
    return replace(workload, jobs=tuple(jobs), notes=(*workload.notes, note))


def _by_model(workload: Workload, library: ProfileLibrary) -> dict[str, Profile | None]:
    sources = dict.fromkeys(name.split("/")[0] for name in library.names)
    source = next((s for s in sources if s in workload.format.lower()), "")
    return {model: library.find(model, source=source) for model in {job.model for job in workload.jobs}}


def _covers(profile: Profile, gpus: int) -> bool:
    return gpus == 1 or profile.demands[-1].gpus > 1


def _check_covers(profile: Profile, job: str, gpus: int) -> None:
    if not _covers(profile, gpus):
        raise InputError(
            f"the mix gives job {job!r} on {gpus} GPUs the profile {profile.name!r}, measured on one",
            "leave it out of the mix, or give its demands on more GPUs in a file of your own",
        )


def _note(mix: str | Mapping[str, float], chosen: ModelMix, counts: Mapping[str, int], seed: int) -> str:
    title = (
        f"{mix!r} ({chosen.about})" if isinstance(mix, str) and mix != chosen.about else repr(chosen.about)
    )
    kept = f"{counts['kept']} kept, " if counts["kept"] else ""
    return f"profiles: {kept}{counts['named']} named by the trace, {counts['drawn']} drawn from mix {title}, seed {seed}"


def _index(profiles: Iterable[Profile]) -> dict[str, list[Profile]]:
    """Profiles by normalised key: full name, model, and model without batch size (the middle one)."""
    index: dict[str, list[Profile]] = {}
    batches: dict[tuple[str, str], list[Profile]] = {}
    for profile in profiles:
        source, _, model = profile.name.rpartition("/")
        for key in {_normal(profile.name), _normal(model)}:
            index.setdefault(key, []).append(profile)
        batches.setdefault((source, _BATCH.sub("", model)), []).append(profile)
    for (source, base), group in batches.items():
        middle = group[(len(group) - 1) // 2]
        for key in {_normal(base), _normal(f"{source}/{base}")}:
            if middle not in index.get(key, []):
                index.setdefault(key, []).append(middle)
    return index


def _base(model: str) -> str:
    return _BATCH.sub("", model.split("@")[0])


def _normal(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _parse_shares(text: str, mixes: Iterable[str]) -> dict[str, float]:
    if "=" not in text:
        raise InputError(
            f"unknown mix {text!r}", f"use one of {', '.join([*mixes, 'none'])}, or gpt2=0.3+vgg16=0.7"
        )
    shares: dict[str, float] = {}
    for part in text.split("+"):
        model, _, share = part.rpartition("=")
        try:
            value = float(share)
        except ValueError:
            raise InputError(
                f"mix {text!r}: {part!r} has no share", "write model=weight, joined by +"
            ) from None
        if model.strip() in shares:
            raise InputError(f"mix {text!r} names {model.strip()!r} twice", "add its shares up")
        shares[model.strip()] = value
    return shares


def _read(path: Path) -> _File:
    try:
        raw = path.read_bytes().removeprefix(BOM_UTF8)  # some editors begin a file with it
    except OSError as error:
        raise InputError(
            f"cannot read profiles from {str(path)!r}: {error.strerror}", "check the path"
        ) from None
    try:
        file = msgspec.json.decode(raw, type=_File)
    except msgspec.MsgspecError as error:
        with suppress(msgspec.MsgspecError):
            _refuse_unknown(path, msgspec.json.decode(raw))
        raise InputError(f"{path}: {error}", "see docs/reference/profiles.md for the format") from None
    if file.schema != SCHEMA:
        raise InputError(
            f"{path}: schema {file.schema!r} is not {SCHEMA!r}", f'begin with "schema": "{SCHEMA}"'
        )
    return file


def _refuse_unknown(path: Path, raw: Any) -> None:
    """Fields that a profile or a demand does not have, with those that they have: the core types would name one alone."""
    for profile in _objects(raw, "profiles"):
        parts = [(profile, Profile), *((demand, Demand) for demand in _objects(profile, "demands"))]
        for part, kind in parts:
            unknown = set(part) - set(kind.__struct_fields__)
            if unknown:
                name = profile.get("name")
                known = ", ".join(kind.__struct_fields__)
                raise InputError(f"{path}: profile {name!r} has unknown {sorted(unknown)}", f"known: {known}")


def _objects(raw: Any, name: str) -> list[dict[str, Any]]:
    """Those in a list of this name, if there is one."""
    found = raw.get(name) if isinstance(raw, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
