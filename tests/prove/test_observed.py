"""What is read from a start: the complaint of its log."""

from __future__ import annotations

import pytest

from tests.prove.made import run
from tools.prove.observed import Run


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    sys.exit(main())\n"
         "ModuleNotFoundError: No module named 'x'\n    sys.exit(run())\nChildFailedError: \n", "ModuleNotFoundError"),
        ("[rank1]: ValueError: no\n[rank1]:     raise RuntimeError\n", "ValueError: no"),
        ("step 1\nstep 2\n", "step 2"),
        ("step 1\nterminate called after throwing 'X'\n  what():  no room\n=====\n-----\n", "what(): no room"),
        ("Root cause\n  Signal 6 (SIGABRT) received\n=====\n", "Signal 6 (SIGABRT) received"),
    ],
)  # fmt: skip
def test_the_complaint_of_a_log(log: str, said: str) -> None:
    assert said in Run("whole", None, log=log).complaint()


@pytest.mark.parametrize(
    ("log", "need"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "torch"),
        ("python: Error while finding module specification for 'torch.distributed.run' (ModuleNotFoundError: No module"
         " named 'torch')", "torch"),
        ("ModuleNotFoundError: No module named 'torch._six'", ""),
        ("ModuleNotFoundError: No module named 'torch_geometric'", ""),
        ("RuntimeError: FSDP needs a non-CPU accelerator device, but no accelerator device is detected.", "cuda"),
        ("EOFError: EOF when reading a line", "stdin"),
        ("wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
         "credentials"),
        ("wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.", "credentials"),
        ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", "credentials"),
        ('botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://b.s3.amazonaws.com"',
         "network"),
        ("LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the"
         " requested files in the local cache.", "network"),
        ("ConnectionError: Couldn't reach 'imdb' on the Hub (OfflineModeIsEnabled)", "network"),
        ("OSError: You are trying to access a gated repo.\nMake sure to have access to it", "credentials"),
        ('  File "<frozen os>", line 679, in __getitem__\nKeyError: \'DATA_DIR\'', "variable"),
        ('  File "/usr/lib/python3.10/os.py", line 680, in __getitem__\nKeyError: \'DATA_DIR\'', "variable"),
        ('  File "<frozen os>", line 679, in __getitem__\nKeyError: \'LOCAL_RANK\'', "launcher"),
        ("ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected,"
         " but not set", "launcher"),
        ("    batch = row['text']\nKeyError: 'text'", ""),
        ("EOFError: Ran out of input", ""),  # an empty file of pickle
    ],
)  # fmt: skip
def test_what_a_log_says_that_a_script_needs(log: str, need: str) -> None:
    assert Run("whole", None, log=f"loading\n{log}\n").need() == need


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "epoch 3")])
def test_the_last_line_of_a_log_is_a_complaint_of_a_start_that_failed(code: int, said: str) -> None:
    outcome = run("whole", exit_code=code).outcome
    assert Run("whole", outcome, log="epoch 2\nepoch 3\n").complaint() == said
