"""What a process takes, read from Linux: CPU time of all its threads, resident memory."""

import time
from dataclasses import dataclass
from pathlib import Path

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessMeter:
    """One running process."""

    pid: int

    def read_cpu_s(self) -> float:
        """CPU seconds so far, user and system, all threads that it has or had, in nanosecond steps."""
        # The id of another process's CPU clock, as clock_getcpuclockid(3) computes it.
        return time.clock_gettime((~self.pid << 3) | 2)

    def read_rss_mib(self) -> float:
        """Resident memory in MiB."""
        return self._read("VmRSS:")

    def read_peak_mib(self) -> float:
        """The most resident memory since the last ``reset_peak``, in MiB."""
        return self._read("VmHWM:")

    def reset_peak(self) -> None:
        """Begin to look for a peak anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _read(self, key: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024 / _MIB
        return 0.0
