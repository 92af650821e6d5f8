"""The reason why a turn is not the next one of its path."""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.matching import Difference


class Label(StrEnum):
    """The relation of a turn to its siblings, by order in time and by the agent that a harness header names."""

    SUPERSEDED = "superseded"
    """A later turn of the same agent asked the same after this one was done."""
    PARALLEL = "parallel"
    """Another turn of the same agent asked the same while this one was in flight."""
    ROOT = "root"
    """The turn attaches to no other turn."""
    BRANCH = "branch"
    """The turn continues its parent in another way than an earlier turn did."""
    EXTENSION = "extension"
    """The turn is the next one of its path."""


class Cause(StrEnum):
    """The likely reason why a turn is a root or a branch."""

    NONE = "none"
    """The turn is an extension."""
    FIRST = "first"
    """The turn is the first of its session."""
    REPEATED = "repeated"
    """The request has the messages of a sibling: a retry, a further sample, or another agent that is told the same."""
    TOOLS_CHANGED = "tools_changed"
    """The request has other tools or template arguments than those with which the path was rendered."""
    SUB_AGENT = "sub_agent"
    """A harness header names a sub-agent, which has no turn yet that the request could continue."""
    SYSTEM_CHANGED = "system_changed"
    """The system message is another one, as in a title request, of a sub-agent, or after a change of the prompt."""
    COMPACTED = "compacted"
    """The request has replies of this session behind another beginning: the harness summarised its history."""
    OTHER_START = "other_start"
    """The first message is another one, as in a side request, or a compacted history without replies."""
    REPLY_REWRITTEN = "reply_rewritten"
    """The reply came back with another text, other calls or other reasoning."""
    REWRITTEN_LATER = "rewritten_later"
    """The reply came back, by its call ids, in another form than the first request that went on from it brought."""
    REPLY_LEFT_OUT = "reply_left_out"
    """The reply did not come back: the harness went on without it."""
    INPUT_CHANGED = "input_changed"
    """A user or tool message at the same place is another one: the harness edited it, or tried again from there."""
    CUT_SHORT = "cut_short"
    """The request ends before the messages of the turn that it might have extended."""
    MATCHER_REFUSED = "matcher_refused"
    """A matcher given by import path refused messages in which no field differs."""
    COMMITTED_LATER = "committed_later"
    """The turn that the request would extend was committed after the request began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reason why a turn is not the next one of its path."""

    cause: Cause
    near: TurnId | None = None
    """The turn that the request came nearest to extending; None where there is none."""
    difference: Difference | None = None
    """The first difference that kept it from extending ``near``; None where there is no such field."""
    would_match: str = ""
    """The setting under which the request would have extended ``near``; empty where there is none."""
    agent: str = ""
    """The sub-agent that a harness header names; empty for a main agent, or where no header tells."""

    def describe(self) -> str:
        """Describe the reason in one sentence for people."""
        said = str(self.cause).replace("_", " ") + (f" {self.agent}" if self.agent else "")
        if self.near is not None:
            said += f" (compared with turn {self.near})"
        if self.difference is not None:
            said += f": {self.difference.describe()}"
        return f"{said}; {self.would_match} would have matched" if self.would_match else said

    def to_json(self) -> JsonObject:
        """Return the explanation ready for JSON, without keys that have no value."""
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
