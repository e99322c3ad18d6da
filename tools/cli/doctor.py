"""Check which of kubectl, docker, aws, eksctl, flux, git and others are here, new enough, and needed for what."""

import concurrent.futures

from tools.core import UserError, did_you_mean, output, programs, worst


def command(names: tuple[str, ...], as_json: bool) -> int:
    for name in names:
        if name not in programs.TABLE:
            known = f"programs: {', '.join(programs.TABLE)}"
            raise UserError(f"unknown program {name}", did_you_mean(name, programs.TABLE) or known)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        found = list(threads.map(programs.check, names or programs.TABLE))
    state = worst(one.state for one in found)
    if as_json:
        output.data({"verdict": state.value, "programs": [one.as_dict() for one in found]})
    for one in [] if as_json else found:
        output.verdict(one)
    return state.exit_code
