"""Rules about the model and its conversations: checkpoint, family, template, matcher, hooks."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

from turnkeeper.choices import EngineKind, RenderTools
from turnkeeper.config.option import BY_ATTRIBUTE
from turnkeeper.config.rule import Severity, Situation, rule
from turnkeeper.errors import ConfigError
from turnkeeper.matching.matcher import MATCHERS
from turnkeeper.rendering.families import FAMILIES, get_family
from turnkeeper.rendering.templates import merge_server_kwargs
from turnkeeper.samples.hooks import PICKERS, POSTPROCESSORS


@rule(when="a session server is on", must="`--hf-checkpoint` is given")
def checkpoint_given(at: Situation) -> str | None:
    """A session server makes token ids of messages, and needs the checkpoint's tokenizer and chat template for it."""
    if not at.has_session_server or at.settings.model.hf_checkpoint:
        return None
    return (
        "a session server needs the checkpoint's tokenizer and template: set --hf-checkpoint to its folder "
        "(hf_checkpoint in a namespace)"
    )


@rule(when="always", must="`--tito-model` is a family")
def family_known(at: Situation) -> str | None:
    """A family says how the model's chat format becomes tokens, and only the listed ones are known."""
    return _find_objection(lambda: get_family(at.settings.model.tito_model))


@rule(when="`--tito-model` is not `default`", must="a session server is on")
def family_needs_server(at: Situation) -> str | None:
    """A family says how a session server keeps tokens; without a session server it has no effect."""
    if at.has_session_server or at.settings.model.tito_model == "default":
        return None
    return (
        f"{at.describe('tito_model')} says how a session server keeps tokens, and none is on: "
        "add --use-session-server, or leave --tito-model out"
    )


@rule(when="a session server is on", must="`--tito-model` names a family", severity=Severity.WARNING)
def family_is_default(at: Situation) -> str | None:
    """The default family renders with the checkpoint's template, which may write earlier turns anew."""
    if not at.has_session_server or at.settings.model.tito_model != "default":
        return None
    return (
        "--tito-model default is best effort: where the checkpoint's own template writes earlier turns differently "
        "once later ones follow, the stored tokens differ from what it would write. `turnkeeper verify` shows how "
        "far it holds; a named family holds by design"
    )


@rule(when="`--chat-template-path` is given", must="`--tito-model` is `default`")
def template_or_family(at: Situation) -> str | None:
    """A named family brings a chat template of its own, so that a second one would contradict it."""
    model = at.settings.model
    if model.chat_template_path is None or model.tito_model == "default":
        return None
    return (
        f"{at.describe('chat_template_path')} cannot replace the template of {at.describe('tito_model')}: "
        "leave one of the two out"
    )


@rule(when="`--chat-template-path` is given", must="there is such a file")
def template_exists(at: Situation) -> str | None:
    """The template is read at start, before any turn is rendered."""
    path = at.settings.model.chat_template_path
    if path is None or Path(path).is_file():
        return None
    return f"--chat-template-path {path}: there is no such file; name a Jinja template, or leave the option out"


@rule(
    when="`--apply-chat-template-kwargs` is given",
    must="no argument contradicts the family's, and each is the template's to take",
)
def template_arguments(at: Situation) -> str | None:
    """A family fixes some template arguments, because with other values earlier turns would be rendered anew."""
    family = FAMILIES.get(at.settings.model.tito_model)
    if family is None:
        return None
    given = at.settings.model.apply_chat_template_kwargs
    objection = _find_objection(lambda: merge_server_kwargs(family, given))
    return objection and f"--apply-chat-template-kwargs: {objection}"


@rule(when="`--render-tools engine` is given", must="`--engine` is not vllm")
def tools_of_engine(at: Situation) -> str | None:
    """This form of tools is that of SGLang's chat route; vLLM renders tools differently."""
    is_vllm = at.settings.engine.engine is EngineKind.VLLM
    if at.settings.model.render_tools is not RenderTools.ENGINE or not is_vllm:
        return None
    return (
        "--render-tools engine renders tools as SGLang's chat route does, and --engine vllm has a form of its own: "
        "leave --render-tools out"
    )


@rule(when="always", must="`--session-message-matcher` is a matcher or an import path")
def matcher_known(at: Situation) -> str | None:
    """The matcher decides which stored turn a request continues, and an unknown name decides nothing."""
    name = at.settings.history.session_message_matcher.replace(":", ".")
    return _find_unknown("session_message_matcher", name, MATCHERS)


@rule(when="always", must="`--session-sample-picker-path` is a picker or an import path")
def picker_known(at: Situation) -> str | None:
    """The picker decides which leaves become samples, and an unknown name picks none."""
    name = at.settings.history.session_sample_picker_path
    return _find_unknown("session_sample_picker_path", name, PICKERS)


@rule(when="always", must="`--session-sample-postprocessor-path` is a postprocessor or an import path")
def postprocessor_known(at: Situation) -> str | None:
    """The postprocessor finishes every sample, and an unknown name finishes none."""
    name = at.settings.history.session_sample_postprocessor_path
    return _find_unknown("session_sample_postprocessor_path", name, POSTPROCESSORS)


def _find_objection(act: Callable[[], object]) -> str | None:
    """Find what an action objects to, with its hint as the remedy."""
    try:
        act()
    except ConfigError as error:
        return f"{error.message}: {error.hint}" if error.hint else error.message
    return None


def _find_unknown(attribute: str, name: str, known: Iterable[str]) -> str | None:
    parts = name.split(".")
    if name in known or (len(parts) > 1 and all(part.isidentifier() for part in parts)):
        return None
    names = [name for name in known if "." not in name]
    near = difflib.get_close_matches(name, names, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    flag = BY_ATTRIBUTE[attribute].flag
    return f"{flag} {name!r} is unknown: {guess}take {', '.join(names)}, or an import path (package.module.function)"
