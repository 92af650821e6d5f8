"""The options of the model, and of the engines that serve it."""

from typing import Annotated, Any

from pydantic import Field

from turnkeeper.choices import EngineKind, EngineWire, OnAbort, PauseMode, RenderTools, TokenizerBackend
from turnkeeper.config.schema.section import Count, Object, SettingsSection, Words


class ModelSection(SettingsSection):
    """Model: whose conversations are kept, and how they become tokens."""

    hf_checkpoint: str | None = None
    """Folder with the checkpoint's tokenizer, config.json and chat template.

    Set it always: a server cannot start without it.
    """
    tito_model: str = "default"
    """Family of the model's chat format; `default` renders with the checkpoint's own template as well as it can.

    Set it to the family of the model that is trained; `turnkeeper verify` shows how far `default` holds.
    """
    chat_template_path: str | None = None
    """Jinja file in place of the checkpoint's template; for the family `default` only.

    Set it where the policy is trained with another template than the one in its checkpoint.
    """
    apply_chat_template_kwargs: Object = Field(default_factory=dict[str, Any])
    """Template arguments of every conversation, as a JSON object.

    Set it to what the trainer passes to the template, such as `{"enable_thinking": false}`.
    """
    render_tools: RenderTools = RenderTools.AS_SENT
    """Form in which tools are rendered; a policy must be trained, evaluated and served with one and the same.

    Take `engine` for a policy that was trained on prompts rendered by SGLang's chat route.
    """
    tokenizer_backend: TokenizerBackend = TokenizerBackend.AUTO
    """Library that makes ids of text; decoding is always that of `tokenizers`.

    Take `tokenizers` to rule the fast library out, `fastokens` to have it from the first turn on.
    """
    max_seq_len: Count | None = None
    """Token limit of a session that names none; samples are cut to it. Unset: the checkpoint's context length.

    Set it to the longest sample that the trainer can take, so that no tokens are sampled in vain.
    """
    num_layers: Count | None = None
    """Layers of the model, where its config.json does not say.

    Set it where the server says at start that config.json describes no mixture of experts.
    """
    moe_router_topk: Count | None = None
    """Experts each token is routed to, where config.json does not say.

    Set it where the server says at start that config.json describes no mixture of experts.
    """
    num_experts: Count | None = None
    """Experts of a layer, where config.json does not say.

    Set it where the server says at start that config.json describes no mixture of experts.
    """


class EngineSection(SettingsSection):
    """Engine: what generates, and what weight updates do to it."""

    backend_url: Words = ()
    """Address of an engine or a router; repeat it for several, and sessions spread over them.

    Set it always: it is where turns are generated.
    """
    engine_api_key: Annotated[str | None, Field(repr=False)] = None
    """Key that is sent to engines and routers as a bearer token.

    Set it where engines or the router demand a key; prefer the file: process lists show flags at first.
    """
    engine_api_key_file: str | None = None
    """File that holds the key for the engines.

    Set it where engines or the router demand a key.
    """
    engine: EngineKind = EngineKind.AUTO
    """Whose wire the engine speaks; `auto` asks it.

    Set it where a router in between hides from the server which engine answers.
    """
    engine_wire: EngineWire = EngineWire.CHAT
    """Route that generates. Unset: `chat`, and `generate` where prefill and decode run on separate servers.

    Take `generate` where a router leaves `meta_info` out of chat replies; /health says so.
    """
    strict_probe: bool = False
    """Fail at start if an engine does not answer or cannot do what is asked of it; else /health says so.

    Turn it on in jobs that should fail at once, rather than wait for an engine that is not right.
    """
    pause_generation_mode: PauseMode = PauseMode.RETRACT
    """How the trainer pauses the engines for a weight update.

    Set it to the mode in which the trainer pauses its engines.
    """
    on_abort: OnAbort = OnAbort.RESTART
    """What happens to a turn that a weight update aborted.

    Take `resume` to keep the tokens of long turns, `fail` to let agents decide.
    """
    abort_attempts: Count = 8
    """How often one turn is continued after such aborts before it fails.

    Raise it where turns are so long that more weight updates than this fall into one of them.
    """
    lora_name: Annotated[str, Field(min_length=1)] | None = None
    """Adapter that every turn is sampled with, under the name that the engines know it by. Unset: the base weights.

    Set it where a trained adapter, not the base model, is to be sampled.
    """
    forward_field: Words = ()
    """Request field on no list that reaches the engines as it comes; repeat it for several. Others are left out.

    Set it for a field of your engine that `marks.dropped_fields` of a turn lists.
    """
    custom_rollout_request_hook_path: str | None = None
    """Function that is asked before each engine call of a turn, as an import path: it adds headers and fields.

    Set it where engines stand behind a gate that admits calls by weight version, or by a header of yours.
    """
    custom_rollout_request_hook_args: Object = Field(default_factory=dict[str, Any])
    """First argument of that function, as a JSON object.

    Set it to what your function reads.
    """
    cache_salt_by_version: bool = False
    """Send a `cache_salt` made of session and weight version, so that no prefix computed by older weights is reused.

    Turn it on where engines keep their prefix cache over a weight update and no token may rest on old weights.
    """
