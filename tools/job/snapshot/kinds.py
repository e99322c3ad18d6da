"""The resources that a snapshot asks the API server for, by kind, and other kinds of jobs (kinds.yaml)."""

from tools.core.tables import load

_TABLES = load("job/snapshot/kinds.yaml")
NAMESPACED: dict[str, str] = _TABLES["namespaced"]
GLOBAL: dict[str, str] = _TABLES["global"]
KUEUE: dict[str, str] = _TABLES["kueue"]
GANGS: dict[str, dict[str, str]] = _TABLES["gangs"]
CLAIMS: dict[str, str] = _TABLES["claims"]
RUNTIMES: dict[str, str] = _TABLES["runtimes"]
NOT_READ: dict[str, str] = _TABLES["not read"]
OWNERS: dict[str, str] = _TABLES["owners"]
