"""mini-swe-agent, over chat completions through litellm. Its bash is the machine's own."""

import os
import tempfile

os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": tempfile.mkdtemp(),
}

from common import SYSTEM, TASK, main
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel


def play(mode: str, url: str) -> str:
    model = LitellmModel(
        model_name="openai/m",
        model_kwargs={"api_base": f"{url}/v1", "api_key": "none", "drop_params": True},
    )
    with tempfile.TemporaryDirectory() as folder:
        agent = DefaultAgent(
            model,
            LocalEnvironment(cwd=folder),
            system_template=SYSTEM,
            instance_template=f"{TASK} Submit with echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT.",
        )
        return agent.run()["submission"]


if __name__ == "__main__":
    main(play)
