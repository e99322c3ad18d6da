"""What a job is, whatever its kind: roles, pods, host names, state, labels, suspension, retry limits."""

from tools.workload.pod import ControllerFault, Pod, PodsUnknown, main_container
from tools.workload.workload import JobState, Role, Workload

__all__ = ["ControllerFault", "JobState", "Pod", "PodsUnknown", "Role", "Workload", "main_container"]
