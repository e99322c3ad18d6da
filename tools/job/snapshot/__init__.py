"""The state of one job at one moment: its pods, logs and run directory."""

from tools.job.snapshot.live_job import LiveJob
from tools.job.snapshot.log_lines import Line
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot

__all__ = ["JobPod", "Line", "LiveJob", "Snapshot"]
