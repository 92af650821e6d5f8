"""A rule between options, and the check of all rules at once.

The rules themselves are rows of `turnkeeper.config.rules.RULES`. Nothing is logged or raised here: what is broken is
returned.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.config.load import Loaded
from turnkeeper.config.option import BY_ATTRIBUTE
from turnkeeper.config.schema import Settings


class Entry(StrEnum):
    """The reader of the options."""

    SERVE = "serve"
    """Our own command line: a session server is on."""
    TRAINER = "trainer"
    """A trainer that owns the command line; it may do without a session server."""


class Severity(StrEnum):
    """The consequence of a broken rule."""

    ERROR = "error"
    """Nothing starts."""
    WARNING = "warning"
    """It is logged once, at start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The options that rules judge, and who gave them."""

    loaded: Loaded
    entry: Entry

    @property
    def settings(self) -> Settings:
        """Every option's value."""
        return self.loaded.settings

    @property
    def has_session_server(self) -> bool:
        """True if a session server of any version is on."""
        return self.entry is Entry.SERVE or self.settings.server.use_session_server is not None

    def is_given(self, attribute: str) -> bool:
        """Return True if a flag, a namespace, a variable or a file gives the option."""
        return self.loaded.is_given(attribute)

    def describe(self, attribute: str) -> str:
        """Name an option with the value it has, as one would write it."""
        option = BY_ATTRIBUTE[attribute]
        value = getattr(getattr(self.settings, option.section), option.field)
        return f"{option.flag} {value:g}" if isinstance(value, float) else f"{option.flag} {value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition between options."""

    name: str
    when: str
    """For the docs: where the rule applies."""
    must: str
    """For the docs: what must hold there."""
    why: str
    """For the docs: the reason, a full sentence."""
    find: Callable[[Situation], str | None]
    """The message, with its remedy, where the rule is broken; None where it holds or does not apply."""
    severity: Severity = Severity.ERROR


def rule(
    *, when: str, must: str, severity: Severity = Severity.ERROR
) -> Callable[[Callable[[Situation], str | None]], Rule]:
    """Make a rule of the function that finds it broken, whose name is the rule's and whose docstring is the reason."""

    def make(find: Callable[[Situation], str | None]) -> Rule:
        why = " ".join((find.__doc__ or "").split())
        return Rule(name=find.__name__, when=when, must=must, why=why, find=find, severity=severity)

    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule."""

    rule: Rule
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that a check found, in the order of the rules."""

    violations: tuple[Violation, ...]

    @property
    def errors(self) -> tuple[str, ...]:
        """Messages of what keeps everything from starting."""
        return self._messages(Severity.ERROR)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Messages of what to log."""
        return self._messages(Severity.WARNING)

    def _messages(self, severity: Severity) -> tuple[str, ...]:
        return tuple(violation.message for violation in self.violations if violation.rule.severity is severity)


def apply_rules(rules: Iterable[Rule], situation: Situation) -> Findings:
    """Find every rule that a situation breaks."""
    found = ((rule, rule.find(situation)) for rule in rules)
    return Findings(violations=tuple(Violation(rule=rule, message=text) for rule, text in found if text is not None))
