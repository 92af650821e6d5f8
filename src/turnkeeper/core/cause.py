"""Why a turn is not simply the next one of its path."""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.matching import Difference


class Label(StrEnum):
    """What a turn is among its siblings, by order in time and by the agent that a harness header names."""

    SUPERSEDED = "superseded"
    """A later turn of the same agent asked the same after this one was done."""
    PARALLEL = "parallel"
    """Another turn of the same agent asked the same while this one was in flight."""
    ROOT = "root"
    """It attaches to nothing."""
    BRANCH = "branch"
    """It goes on otherwise than an earlier turn of the same parent."""
    EXTENSION = "extension"
    """It is the next turn of its path."""


class Cause(StrEnum):
    """The likely reason why a turn is a root or a branch."""

    NONE = "none"
    """It is an extension."""
    FIRST = "first"
    """The session's first turn."""
    REPEATED = "repeated"
    """The request has the messages of a sibling: a retry, a further sample, or another agent that is told the same."""
    TOOLS_CHANGED = "tools_changed"
    """Other tools or template arguments than those its path was rendered with."""
    SUB_AGENT = "sub_agent"
    """A harness header names a sub-agent, and none of its turns stands here yet that it goes on from."""
    SYSTEM_CHANGED = "system_changed"
    """Another system message: a title request, a sub-agent, another prompt."""
    COMPACTED = "compacted"
    """Replies of this session stand behind another beginning: the harness summarised its history."""
    OTHER_START = "other_start"
    """Another first message: a side request, or a compacted history that carries no reply."""
    REPLY_REWRITTEN = "reply_rewritten"
    """The reply came back with another text, other calls or other reasoning."""
    REWRITTEN_LATER = "rewritten_later"
    """The reply came back, by its call ids, in another form than the first request that went on from it brought."""
    REPLY_LEFT_OUT = "reply_left_out"
    """The reply did not come back: the harness went on without it."""
    INPUT_CHANGED = "input_changed"
    """Another user or tool message at the same place: the harness edited, or tried again from here."""
    CUT_SHORT = "cut_short"
    """The request ends before the messages of the turn that it might have extended."""
    MATCHER_REFUSED = "matcher_refused"
    """A matcher given by import path said no to messages in which no field differs."""
    COMMITTED_LATER = "committed_later"
    """The turn that it would extend was committed after it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a turn is not the next one of its path."""

    cause: Cause
    near: TurnId | None = None
    """The turn that it came nearest to extending; None where there is none."""
    difference: Difference | None = None
    """The first difference that kept it from extending ``near``; None where there is no such field."""
    would_match: str = ""
    """The setting under which it would have extended ``near``; empty where none would."""
    agent: str = ""
    """The sub-agent that a harness header names; empty for a main agent, or where no header tells."""

    def describe(self) -> str:
        """One sentence for a person."""
        said = str(self.cause).replace("_", " ") + (f" {self.agent}" if self.agent else "")
        if self.near is not None:
            said += f" (compared with turn {self.near})"
        if self.difference is not None:
            said += f": {self.difference.describe()}"
        return f"{said}; {self.would_match} would have matched" if self.would_match else said

    def to_json(self) -> JsonObject:
        """The same, JSON-ready; keys without a value are left out."""
        said: JsonObject = {"cause": str(self.cause)}
        if self.near is not None:
            said["near"] = int(self.near)
        if self.difference is not None:
            said["difference"] = self.difference.to_json()
        if self.would_match:
            said["would_match"] = self.would_match
        if self.agent:
            said["agent"] = self.agent
        return said


EXTENDS = Explanation(cause=Cause.NONE)
