"""Errors that teach: what was given, why not, what to try."""

from __future__ import annotations

import difflib

from pydantic import BaseModel, ConfigDict, ValidationError

_LONGEST = 80  # characters of a value in a sentence


class ConfigError(ValueError):
    """A description of a run that cannot be carried out; the text is one sentence a problem."""


class FriendlyModel(BaseModel):
    """A frozen pydantic model that refuses unknown fields and answers bad values in sentences."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    def __init__(self, **data):
        try:
            super().__init__(**data)
        except ValidationError as error:
            sentences = [_sentence(problem, type(self)) for problem in error.errors()]
            raise ConfigError("; ".join(dict.fromkeys(sentences))) from None

    def __setattr__(self, name, value):
        raise ConfigError(
            f"{name} cannot be set: a {type(self).__name__} is frozen; make another by replace({name}=...)"
        )

    def replace(self, **changes):
        """Return a copy with some fields changed, validated again.

        Raises ConfigError as the constructor does.
        """
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**given, **changes})


def _inside(field: str, model: type[BaseModel]) -> str | None:
    """The field of a model whose own description has the field that is looked for."""
    for name, info in model.model_fields.items():
        if field in getattr(info.annotation, "model_fields", {}):
            return name
    return None


def _sentence(problem: dict, model: type[BaseModel]) -> str:
    """Turn one pydantic problem into a sentence: field, value given, reason."""
    field = ".".join(str(part) for part in problem["loc"] if not str(part).startswith("function-"))
    if problem["type"] == "value_error":  # raised by our own validators: already a sentence
        return str(problem["ctx"]["error"])
    if problem["type"] == "extra_forbidden":
        if inner := _inside(field, model):
            hint = f"its {inner} has: try config.replace({inner}=config.{inner}.replace({field}=...))"
            return f"{model.__name__} has no field {field!r}; {hint}"
        near = difflib.get_close_matches(field, model.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the known fields are {', '.join(model.model_fields)}"
        return f"{model.__name__} has no field {field!r}; {hint}"
    if problem["type"] == "missing":
        return f"{model.__name__} needs {field}; give it a value"
    given = repr(problem["input"])
    given = given if len(given) <= _LONGEST else given[:_LONGEST] + "..."
    reason = problem["msg"][0].lower() + problem["msg"][1:]
    reason = reason.removeprefix("input ")
    return f"{field}={given} is refused: it {reason}"
