"""What importing the client costs: no library that only its calls need."""

import os
import subprocess
import sys
from pathlib import Path

HEAVY = (
    "aiohttp",
    "numpy",
    "urllib3",
    "safetensors",
    "tokenizers",
    "pydantic",
    "turnkeeper.core",
    "turnkeeper.samples",
)
PROGRAM = "import sys, turnkeeper.client; print(*sys.modules)"


def test_importing_the_client_imports_no_library_that_only_its_calls_need() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert "turnkeeper.client" in loaded
    assert set(HEAVY) & set(loaded) == set()
