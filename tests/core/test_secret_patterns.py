"""Every shape of secret is found, masked and searched for in linear time."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

from tools.core import secret_patterns
from tools.core.secret_patterns import SHAPES, find, in_file, is_secret_name, mask

LETTERS = "qWmZ7rTnKpLx3VbHsJdGfYc9UaEoIq5RtYuBn2Xk93nd72kqLmQp9TnWbYs4HdFgJcUaEoIqZxNv"
HEX = "8c1f0e9b7a6d5c4e3f2a1b0c9d8e7f6a5b4c3d2e"
BODY = "\n".join(["MIIEpAIBAAKCAQEA7Zm9vYmFyQkFaMTIzNDU2Nzg5MEFCQ0RFRkdISUpLTE1O"] * 3)
KEY = "-----BEGIN {}PRIVATE " + "KEY-----\n" + BODY

# (kind, text before the value, value): values are put together here, so that a scan of this repository for
# secrets does not stop at this file.
SAMPLES = [
    ("a Hugging Face token", "HF_TOKEN=", "hf" + "_" + "qWmZrTnKpLxVbHsJdGfYcUaEoIqRtYuBnX"),
    ("an AWS access key", "id: ", "AKI" + "AQ3EGWXYZ7RTNPLMK"),
    ("an AWS access key", "id: ", "ASI" + "AQ3EGWXYZ7RTNPLMK"),
    ("an AWS secret key", "aws_secret_access_key = ", "kR7vXz/2LmQp9TnWbYs4HdFgJcUaEo+IqZxNvB3M"),
    ("an AWS secret key", 'AWS_SECRET_ACCESS_KEY: "', "kR7vXz/2LmQp9TnWbYs4HdFgJcUaEo+IqZxNvB3M"),
    *(("a GitHub token", "token ", f"gh{kind}_" + LETTERS[:36]) for kind in "pousr"),
    ("a GitHub token", "token ", "github" + "_pat_" + LETTERS[:22] + "_" + LETTERS[:59]),
    ("a GitLab token", "--token=", "glpat" + "-" + LETTERS[:20]),
    ("a Weights & Biases key", "WANDB_API_KEY=", HEX),
    ("a Weights & Biases key", "wandb login --relogin ", HEX),
    ("a Weights & Biases key", 'wandb_key: "', LETTERS[:76] + "aB3dE6gH9j"),
    ("a Weights & Biases key", "login with ", "wandb" + "_v1_" + LETTERS[:40] + LETTERS[:37]),
    ("a key for a model's service", "groq ", "gs" + "k_" + LETTERS[:40] + LETTERS[:12]),
    ("a key for a model's service", "replicate ", "r" + "8_" + LETTERS[:37]),
    ("a key for a model's service", "OPENAI=", "sk" + "-proj-" + LETTERS[:48]),
    ("a key for a model's service", "ANTHROPIC=", "sk" + "-ant-api03-" + LETTERS[:40]),
    ("a Google API key", "key=", "AIz" + "aSyA" + LETTERS[:32]),
    *(("a Slack token", "slack ", f"xox{kind}-" + "123456789012-" + LETTERS[:24]) for kind in "abeoprs"),
    ("an NVIDIA key", "NGC ", "nvapi" + "-" + LETTERS[:64]),
    ("a PyPI token", "password = ", "pypi" + "-AgEIcHlwaS5vcmc" + LETTERS[:60]),
    ("an npm token", "_authToken=", "npm" + "_" + LETTERS[:36]),
    ("a Databricks token", "host ", "dap" + "i" + HEX[:32]),
    ("a Docker token", "docker login -p ", "dckr" + "_pat_" + LETTERS[:27]),
    ("a Google OAuth secret", "client ", "GOC" + "SPX-" + LETTERS[:28]),
    ("a Vault token", "X-Vault-Token ", "hv" + "s." + LETTERS[:28]),
    ("a web token", "jwt ", f"ey{LETTERS[:20]}.ey{LETTERS[:20]}.{LETTERS}".replace("eyq", "eyJ")),
    ("a signature of an address", "https://a.blob.core.windows.net/c?sv=1&si" + "g=", LETTERS[:40] + "%3D"),
    ("a key of Azure Storage", "AccountKey=", LETTERS + "=="),
    ("a webhook's address", "https://hooks.slack.com/services/", "T01/B02/" + LETTERS[:24]),
    ("a Stripe key", "", "sk" + "_live_" + LETTERS[:24]),
    *(("a private key", "", KEY.format(kind)) for kind in ("RSA ", "", "EC ", "OPENSSH ", "ENCRYPTED ")),
    *(
        ("a private key", "tls.key: ", base64.b64encode(KEY.format(kind).encode()).decode())
        for kind in ("RSA ", "", "EC ", "OPENSSH ", "ENCRYPTED ", "DSA ", "PGP ")
    ),
    ("a password in an address", "postgresql://ml:", "Xk93nd72kq"),
]  # fmt: skip
AFTER = {"a password in an address": "@db7.prod.internal/x"}


@pytest.mark.parametrize(("kind", "before", "value"), SAMPLES, ids=lambda text: str(text)[:30].strip())
@pytest.mark.parametrize("examples", [True, False])
def test_a_secret_is_found_with_its_span_and_masked(kind: str, before: str, value: str, examples: bool) -> None:
    text = f"first line\n{before}{value}{AFTER.get(kind, '')}\nlast line"
    (secret,) = find(text, examples)
    assert (secret.kind, text[secret.start : secret.end]) == (kind, value)
    masked = mask(text)
    assert value not in masked
    assert masked.replace('"', "") == f"first line\n{before}***{AFTER.get(kind, '')}\nlast line".replace('"', "")


def test_every_shape_has_a_sample() -> None:
    assert {shape.kind for shape in SHAPES} == {kind for kind, _, _ in SAMPLES}


@pytest.mark.parametrize(
    "text",
    [
        "AutoModel hf_hub_download(repo_id, filename)",
        "disk-" + "a" * 30,
        "https://github.com/pytorch/pytorch:main@sha256",
        "http://${USER}:${PASSWORD}@host/x and http://<user>:<password>@host/x",
        "docker.io/library/python:3.12@sha256:" + "0a" * 32,
        "caBundle: " + base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIID" + b"A" * 90).decode(),
        "-----BEGIN PUBLIC KEY-----\n" + BODY,
        "revision: " + HEX,
    ],
)
def test_other_text_is_not_a_secret(text: str) -> None:
    assert find(text) == []
    assert mask(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "hf" + "_" + "x" * 34,
        "hf" + "_YourTokenGoesHereReplaceIt",
        "AKIA" + "IOSFODNN7EXAMPLE",
        "xoxb" + "-your-token-goes-here",
        "sk" + "-learn-preprocessing-pipeline",
        "if line == '-----BEGIN RSA PRIVATE " + "KEY-----':",
        "postgresql://user:password@host/db",
        "postgresql://ml:Xk93nd72kq@localhost:5432/db",
    ],
)
def test_an_example_is_left_out_where_examples_are_expected(text: str) -> None:
    assert find(text) != []
    assert find(text, examples=False) == []


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.kind)
def test_a_search_takes_linear_time(shape: secret_patterns.Shape) -> None:
    """Texts of 200,000 characters that start to match again and again: a quadratic pattern takes minutes."""
    pieces = [
        *shape.hints, "aws_secret_access_key=", "wandb login --a ", "-----BEGIN A PRIVATE KEY-----\n", "a+", "a://b:",
        "LS0tLS1CRUdJTiB", "glpat-", "eyJaaaaaaaa.", "eyJaaaaaaaa-", "token=", 'token="', '\\"token\\":\\"',
        "--token ", "name: TOKEN, value: ", "login a -p", "authorization: ", "bearer a", "-u a:", "cookie:",
        "-", " ", "\n", "a", "A: ", "://", "a_",
    ]  # fmt: skip
    began = time.process_time()
    for piece in pieces:
        text = (piece * (200_000 // len(piece)))[:200_000]
        assert all(match.end() > match.start() for match in shape.pattern.finditer(text))
        if shape is SHAPES[0]:
            mask(text)
    assert time.process_time() - began < 20


def test_a_secret_in_a_file_has_its_line_and_no_value(tmp_path: Path) -> None:
    """Control: a binary file, a link and a large file are not searched."""
    _, before, value = SAMPLES[3]
    path = tmp_path / "settings.cfg"
    path.write_text(f"[default]\n\n{before}\n  {value} # old\n")
    (found,) = in_file(path)
    assert (found.kind, found.line, found.text) == ("an AWS secret key", 4, "*** # old")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "binary").write_bytes(b"\0" + path.read_bytes())
    (tmp_path / "large").write_bytes(path.read_bytes() + b" " * secret_patterns.LARGEST_FILE)
    for name in ("link", "binary", "large", "missing"):
        assert list(in_file(tmp_path / name)) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "apiKey")),
        *((name, False) for name in ("PAD_TOKEN", "MAX_TOKENS", "HF_TOKEN_PATH", "SECRET_NAME", "KEY")),
    ],
)  # fmt: skip
def test_a_name_says_whether_its_value_is_secret(name: str, expected: bool) -> None:
    assert is_secret_name(name) == expected
    assert mask(f"{name}=abc: x") == (f"{name}=*** x" if expected else f"{name}=abc: x")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("run --password {} -x", "run --password *** -x"),
        ("--hf-token={}", "--hf-token=***"),
        ("Authorization: Bearer {}", "Authorization: Bearer ***"),
        ("curl -u alice:{} https://host", "curl -u alice:*** https://host"),
        ("no such dataset: https:/alice:{}@host/a", "no such dataset: https:/alice:***@host/a"),
        ("docker login -u alice -p {} registry", "docker login -u alice -p *** registry"),
        ("machine host login alice password {}", "machine host login alice password ***"),
        ("https://u:{}@host/x", "https://u:***@host/x"),
        ('{{"password": "{}", "step": 1}}', '{{"password": "***", "step": 1}}'),
        (r"{{\"password\": \"{}\", \"k\": 1}}", r"{{\"password\": \"***\", \"k\": 1}}"),
        ("- name: HF_TOKEN\n  value: {}\n", "- name: HF_TOKEN\n  value: ***\n"),
        ("url=https://host?token={}", "url=https://host?token=***"),
        ("Cookie: session={}", "Cookie: ***"),
        ("x-api-key: {}", "x-api-key: ***"),
    ],
)
def test_a_value_behind_a_secrets_name_is_masked(text: str, masked: str) -> None:
    found = mask(text.format("x7Kq"))
    assert found == masked.format()
    assert mask(found) == found


@pytest.mark.parametrize(
    "text",
    ["token: not found", 'secret "hf-token" not found', '{"token": 5, "loss": 2.0}', "max_tokens: 5 loss=2.1",
     "run -u 1000:1000 x", "docker-pullable://host/a:1@sha256:0a"],
)  # fmt: skip
def test_other_words_stay(text: str) -> None:
    assert mask(text) == text


def test_plain_data_is_masked_with_the_option_before_a_value() -> None:
    spec = {"args": ["--wandb-key", "x7Kq", "--lr", "1"], "env": [{"name": "DB_PASS", "value": "x7Kq"}]}
    expected = {"args": ["--wandb-key", "***", "--lr", "1"], "env": [{"name": "DB_PASS", "value": "***"}]}
    assert secret_patterns.masked(spec) == expected
