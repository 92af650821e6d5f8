"""Sessions as lines of text: a table, a tree of turns, texts and tokens by turn, an explanation. Pure.

Lines are never cut; what agents and engines wrote has no control characters left in it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from turnkeeper.jsontypes import JsonObject, is_object, spell_value
from turnkeeper.texts import escape_controls
from turnkeeper.views.explain import SessionExplanation
from turnkeeper.views.session import ShownSession, ShownTurn, TurnContent
from turnkeeper.views.words import count, format_seconds

HEADS = ("session", "state", "turns", "in flight", "age", "idle", "MiB", "history", "metadata")


def render_rows(rows: Sequence[JsonObject]) -> list[str]:
    """Render sessions as a table, one line each; a column that says nothing of any is left out."""
    columns = [column for column in zip(HEADS, *map(_list_cells, rows), strict=True) if any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def _list_cells(row: JsonObject) -> tuple[str, ...]:
    metadata = row.get("metadata")
    said = " ".join(f"{key}={spell_value(value)}" for key, value in metadata.items()) if is_object(metadata) else "..."
    if "error" in row:
        said = f"unreadable: {row['error']}"
    return (
        escape_controls(str(row["session_id"])),
        str(row.get("state", "")),
        str(row["turns"]),
        _describe_oldest(row.get("in_flight_turns", ()), row.get("in_flight", 0)),
        _format_age(row.get("age_s")),
        _format_age(row.get("idle_s")),
        str(round(row["bytes"] / 2**20)),
        str(row.get("history", "")),
        escape_controls(said).replace("\n", " "),
    )


def _describe_oldest(turns: Sequence[JsonObject], number: int) -> str:
    """Describe the turn that has been in flight longest, and how many there are."""
    if not turns:
        return str(number) if number else ""
    turn = turns[0]
    here, whole = format_seconds(turn["phase_age_s"]), format_seconds(turn["age_s"])
    said = f"{turn['phase']} {here}" + (f" of {whole}" if whole != here else "")
    at = f" at {turn['engine']}" if turn.get("engine") else ""
    return said + at + (f", {number - 1} more" if number > 1 else "")


def _format_age(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def render_session(session: ShownSession) -> list[str]:
    """Render what is known of the whole session, its turns in flight, and its tree."""
    head = [f"session {session.id}", session.history, count(len(session.turns), "turn")]
    if session.in_flight:
        head.append(f"{len(session.in_flight)} in flight")
    if session.closed:
        head.append(f"closed: {session.closed}")
    lines = [" · ".join(head)]
    if session.metadata:
        lines.append("metadata: " + " ".join(f"{key}={spell_value(value)}" for key, value in session.metadata.items()))
    if tokens := describe_fate(session.accounting):
        lines.append(f"{session.accounting.get('sampled', 0)} sampled tokens: {tokens}")
    for turn in session.in_flight:
        behind = "a first prompt" if turn.get("parent") is None else f"behind turn {turn['parent']}"
        lines.append(f"in flight, {behind}: {_describe_oldest([turn], 1)}")
    lines += [f"note: {note}" for note in session.notes]
    lines += ["", *render_tree(session)]
    return [escape_controls(line) for line in lines]


def describe_fate(fate: Mapping[str, object]) -> str:
    """Describe how many tokens train, are masked and are dropped: ``12 train, 3 masked (hook)``."""
    said = [f"{fate['trainable']} train"] if fate.get("trainable") else []
    for name in ("masked", "dropped"):
        reasons = fate.get(name)
        if is_object(reasons) and reasons:
            named = ", ".join(reasons) if len(reasons) == 1 else ", ".join(f"{n} {why}" for why, n in reasons.items())
            said.append(f"{sum(reasons.values())} {name} ({named})")
    return ", ".join(said)


def render_tree(session: ShownSession) -> list[str]:
    """Render the turns as a tree, one line each; a path without a fork runs straight down.

    ::

        0 root · 45+12 tokens · stop · 12 train
        ├─ 1 extension · ...
        │  2 extension · ...
        └─ 3 branch: reply_left_out · ...
    """
    children: dict[int | None, list[ShownTurn]] = {}
    for turn in session.turns:
        children.setdefault(turn.parent, []).append(turn)
    lines: list[str] = []
    stack = [(turn, "", "") for turn in reversed(children.get(None, []))]
    while stack:
        turn, first, rest = stack.pop()
        lines.append(first + _describe_turn(turn))
        below = children.get(turn.id, [])
        if len(below) == 1:
            stack.append((below[0], rest, rest))
            continue
        marks = [("├─ ", "│  ")] * (len(below) - 1) + [("└─ ", "   ")]
        stack += [
            (child, rest + mark, rest + line) for child, (mark, line) in reversed([*zip(below, marks, strict=False)])
        ]
    return lines


def _describe_turn(turn: ShownTurn) -> str:
    why = f": {turn.cause}" if turn.cause not in ("", "none", "first") else ""
    said = [f"{turn.id} {turn.label}{why}", f"{turn.prompt_tokens}+{turn.completion_tokens} tokens", turn.finish_reason]
    if turn.cached_tokens:
        said[1] += f" ({turn.cached_tokens} cached)"
    if turn.trainable is not None:
        said.append(describe_fate({"trainable": turn.trainable, "masked": turn.masked, "dropped": turn.dropped}))
    if turn.times:
        said.append(_describe_times(turn.times))
    if turn.would_match:
        near = "" if turn.near is None else f" it to turn {turn.near}"
        said.append(f"{turn.would_match} would have joined{near}")
    said += [f"agent {turn.agent}" if turn.agent else "", f"model {turn.model}" if turn.model else ""]
    return " · ".join(each for each in said if each)


def _describe_times(times: Mapping[str, float]) -> str:
    """Describe where a turn's time went: at the gate where it waited there, at the engine, and in the server itself."""
    here = sum(times.get(name, 0.0) for name in ("rendering_s", "recording_s"))
    named = (("gate", times.get("gate_s", 0.0)), ("engine", times.get("engine_s", 0.0)), ("here", here))
    return ", ".join(f"{name} {seconds:.3f} s" for name, seconds in named if seconds >= 0.0005 or name != "gate")


def render_turn(turn: ShownTurn, *, limit: int | None, with_tokens: bool) -> list[str]:
    """Render the content of a turn: what it was told, what was sampled, and how.

    Args:
        turn: the turn.
        limit: the most characters of a text; None for whole texts.
        with_tokens: whether each sampled token gets a line.
    """
    lines = ["", f"turn {turn.id} · {turn.label} · {turn.response_id}"]
    content = turn.content
    if content is None:
        lines.append("  (in no sample: its text is not in the payload)")
        return [escape_controls(line) for line in lines]
    if turn.parent is None and not (content.told and content.told[0].role):
        lines.append("  (the first prompt is in the payload as token ids only)")
    for message in content.told:
        lines += [f"  {message.role or 'prompt'}:", *_indent(message.text, limit)]
    lines += ["  sampled:", *_indent(content.text, limit), *_render_sampling(content, with_tokens=with_tokens)]
    return [escape_controls(line) for line in lines]


def _indent(text: str, limit: int | None) -> list[str]:
    left_out = 0 if limit is None else max(0, len(text) - limit)
    shown = text[: len(text) - left_out]
    more = [f"    ... {count(left_out, 'character')} more: --full"] if left_out else []
    return [f"    {line}" for line in shown.split("\n")] + more


def _render_sampling(content: TurnContent, *, with_tokens: bool) -> Iterator[str]:
    tokens = content.tokens
    if not tokens:
        return
    logprobs = [token.logprob for token in tokens]
    versions = Counter("unknown" if token.version is None else token.version for token in tokens)
    said = [count(len(tokens), "token"), f"mean logprob {sum(logprobs) / len(logprobs):.3f}, least {min(logprobs):.3f}"]
    said.append("version " + ", ".join(name if len(versions) == 1 else f"{name} ({n})" for name, n in versions.items()))
    if tokens[0].trained is not None:
        trained = sum(bool(token.trained) for token in tokens)
        masked = Counter(token.masked or "unknown" for token in tokens if not token.trained)
        said.append(f"{trained} trained" + "".join(f", {n} masked ({why})" for why, n in masked.items()))
    yield f"    [{'; '.join(said)}]"
    if with_tokens:
        yield from _render_tokens(content)


def _render_tokens(content: TurnContent) -> Iterable[str]:
    yield "    place      id    logprob  version  loss"
    for place, token in enumerate(content.tokens):
        loss = "" if token.trained is None else token.masked or str(token.trained)
        version = "unknown" if token.version is None else token.version
        yield f"    {place:5}  {token.id:6}  {token.logprob:9.4f}  {version:7}  {loss}".rstrip()


def render_explanation(explanation: SessionExplanation) -> list[str]:
    """Render an explanation in sentences."""
    lines = [f"session {explanation.session_id}: {'; '.join(explanation.summary)}."]
    for wait in explanation.waits:
        lines += ["", wait.says, *_render_heals(wait.heals)]
    for fork in explanation.forks:
        lines += ["", fork.reason, f"  cost: {fork.cost.describe()}", *_render_heals(fork.heals)]
    if explanation.losses:
        lines += ["", "Sampled tokens that do not train:"]
    for loss in explanation.losses:
        lines += [f"  {loss.tokens} {loss.reason}: {loss.says}", *(f"  {line}" for line in _render_heals(loss.heals))]
    return [escape_controls(line) for line in lines]


def _render_heals(heals: str) -> list[str]:
    return [f"  heals: {heals}"] if heals else []
