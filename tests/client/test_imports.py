"""What importing the client costs: no library that only its calls need."""

import os
import subprocess
import sys
from pathlib import Path

HEAVY = {
    *("aiohttp", "urllib3", "http.client", "numpy", "safetensors", "tokenizers", "pydantic"),
    *("turnkeeper.core", "turnkeeper.samples"),
    *("urllib.parse", "hashlib"),  # a few milliseconds each, a tenth of the whole
}
PROGRAM = "import sys, turnkeeper.client; print(*sys.modules)"


def test_importing_the_client_imports_no_library_that_only_its_calls_need() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert "turnkeeper.client" in loaded
    assert HEAVY & set(loaded) == set()
