"""Each failure of AWS is one sentence with its cause and exit code; and the identity of the caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aws.conftest import Gaps, Yard, refusal
from tools.aws import principals
from tools.aws.session import AwsError, Session
from tools.core import repo
from tools.core.errors import UserError

REGION = "us-west-2"
CLUSTER = "arn:aws:eks:us-west-2:123456789012:cluster/gpu"
DENIED = (
    "User: arn:aws:sts::123456789012:assumed-role/dev/jane is not authorized to perform: eks:DescribeCluster "
    f"on resource: {CLUSTER} because no identity-based policy allows it"
)


# What AWS answers: code, HTTP status and message; and the kind, exit code and a part of our error.
REFUSALS = f"""
ExpiredToken | 403 | The security token included in the request is expired | expired | 3 | have expired
RequestExpired | 400 | Request has expired. | clock | 3 | differs from AWS's clock (eks:DescribeCluster
InvalidSignatureException | 403 | Signature expired: 1 is now earlier than 2 | clock | 3 | is now earlier than
SignatureDoesNotMatch | 403 | Signature not yet current: 20261122T16Z | clock | 3 | clock
SignatureDoesNotMatch | 403 | The signature we calculated does not match | credentials | 3 | calculated
UnrecognizedClientException | 403 | The security token is invalid | credentials | 3 | does not know
AccessDeniedException | 403 | {DENIED} | denied | 3 | permission: eks:DescribeCluster on {CLUSTER} in us-
UnauthorizedOperation | 403 | You are not authorized | denied | 3 | permission: eks:DescribeCluster in
ThrottlingException | 400 | Rate exceeded | throttled | 3 | AWS throttles eks:DescribeCluster
OptInRequired | 403 | not subscribed | region | 3 | cannot use this region
ResourceNotFoundException | 404 | No cluster found for name: gpu. | missing | 2 | No cluster found
InternalFailure | 500 | oops | endpoint | 3 | AWS failed: oops
InvalidParameterException | 400 | bad name | refused | 2 | eks:DescribeCluster in us-west-2: bad name
""".strip().splitlines()


@pytest.mark.parametrize("row", REFUSALS)
def test_each_refusal_is_one_sentence(session: Session, gaps: Gaps, row: str) -> None:
    code, status, message, kind, exit_code, said = row.split(" | ")
    gaps["eks", "describe_cluster"] = refusal(code, message, int(status))
    with pytest.raises(AwsError) as caught:
        session.call("eks", "describe_cluster", name="gpu")
    problem = caught.value
    assert (problem.kind, problem.code) == (kind, int(exit_code))
    assert said in problem.message
    assert "\n" not in problem.message


def test_an_explicit_deny_is_reported(session: Session, gaps: Gaps) -> None:
    """Another policy does not override an explicit deny."""
    text = DENIED.partition(" because")[0] + " with an explicit deny in a service control policy"
    gaps["eks", "describe_cluster"] = refusal("AccessDeniedException", text, 403)
    with pytest.raises(AwsError, match="denied explicitly"):
        session.call("eks", "describe_cluster", name="gpu")


def test_a_listing_has_all_pages(session: Session) -> None:
    """The listing has more items than a page."""
    names = {f"role-{number}" for number in range(5)}
    for name in names:
        make_role(session, name)
    pages = session.pages("iam", "list_roles", "Roles", PaginationConfig={"PageSize": 2})
    assert {one["RoleName"] for one in pages} == names


@pytest.mark.parametrize(
    ("region", "said", "hint"),
    [
        ("us-wset-2", "no such AWS region: us-wset-2", "did you mean us-west-2?"),
        ("us west 2", "no such AWS region: us west 2", "did you mean us-west-2?"),
        ("us-west-2", "AWS cannot be reached for eks:ListClusters in us-west-2", "proxy"),
    ],
)
def test_a_wrong_region_is_distinguished_from_a_network_failure(
    monkeypatch: pytest.MonkeyPatch, region: str, said: str, hint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("tools.aws.session.ATTEMPTS", 1)
    with pytest.raises(AwsError) as caught:
        Session(region).call("eks", "list_clusters")
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.code == 3


def test_no_region_is_a_usage_error(moto: None) -> None:
    with pytest.raises(AwsError, match="no AWS region is set") as caught:
        Session().identity()
    assert caught.value.code == 2


PROFILES = Path(__file__).with_name("profiles.ini")


@pytest.mark.parametrize(
    ("profile", "kind", "said", "hint"),
    [
        ("reserch", "credentials", "the profile reserch does not exist", "did you mean research?"),
        ("zzz", "credentials", "the profile zzz does not exist", "list-profiles"),
        ("research", "credentials", 'source_profile "bas"', "aws configure"),
        ("careful", "credentials", "needs an MFA code", "terminal"),
        ("round", "credentials", "Infinite loop", "aws configure"),
        ("login", "expired", "login has expired", "aws sso login --profile login"),
        ("program", "credentials", "/no/such/program", "credential_process"),
        ("half", "credentials", "missing: aws_secret_access_key", "aws configure"),
        ("misspelt", "credentials", "Ec2InstanceMetadat", "aws configure"),
    ],
)
def test_a_profile_without_credentials_is_reported(
    profile: str, kind: str, said: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import getpass

    from botocore.credentials import AssumeRoleProvider

    monkeypatch.setenv("AWS_CONFIG_FILE", str(PROFILES))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)

    def no_terminal(prompt: str) -> str:
        raise EOFError

    make = AssumeRoleProvider.__init__
    defaults = tuple(no_terminal if one is getpass.getpass else one for one in make.__defaults__)
    monkeypatch.setattr(make, "__defaults__", defaults)
    with pytest.raises(AwsError) as caught:
        Session(REGION, profile).identity()
    problem = caught.value
    assert (problem.kind, problem.code, problem.hides_all) == (kind, 3, True)
    assert said in problem.message
    assert hint in (problem.hint or "")


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("AWS_USE_FIPS_ENDPOINT", "true", "AWS_USE_FIPS_ENDPOINT is set"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "true", "AWS_USE_DUALSTACK_ENDPOINT is set"),
        ("HTTPS_PROXY", "http://127.0.0.1:9", "proxy"),
    ],
)
def test_variants_and_proxies_are_named(
    name: str, value: str, hint: str, gaps: Gaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import EndpointConnectionError, ProxyConnectionError

    proxy = ProxyConnectionError(proxy_url=value)
    gone = proxy if "PROXY" in name else EndpointConnectionError(endpoint_url="https://eks")
    gaps["eks", "list_clusters"] = gone
    monkeypatch.setenv(name, value)
    with pytest.raises(AwsError, match="AWS cannot be reached") as caught:
        Session(REGION).call("eks", "list_clusters")
    assert hint in (caught.value.hint or "")


def make_role(session: Session, name: str, path: str = "/") -> None:
    session.call("iam", "create_role", RoleName=name, Path=path, AssumeRolePolicyDocument="{}")


def test_a_session_is_its_role_with_the_path(session: Session) -> None:
    """Access entries need the path, which the ARN of a session lacks."""
    path = "/aws-reserved/sso.amazonaws.com/us-west-2/"
    make_role(session, "AWSReservedSSO_Admin_0123", path)
    who = principals.resolve(session, "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Admin_0123/jane@x.org")
    assert who.arn == f"arn:aws:iam::123456789012:role{path}AWSReservedSSO_Admin_0123"
    assert who.certain


def test_a_role_that_cannot_be_looked_up_is_uncertain(session: Session, gaps: Gaps) -> None:
    gaps["iam", "get_role"] = refusal("AccessDenied", "User: x is not authorized to perform: iam:GetRole", 403)
    who = principals.resolve(session, "arn:aws-us-gov:sts::123456789012:assumed-role/dev/jane")
    assert (who.arn, who.certain) == ("arn:aws-us-gov:iam::123456789012:role/dev", False)


def test_a_role_of_another_account_keeps_its_account(session: Session) -> None:
    make_role(session, "dev", "/here/")
    who = principals.resolve(session, "arn:aws:sts::999999999999:assumed-role/dev/jane")
    assert (who.arn, who.certain) == ("arn:aws:iam::999999999999:role/dev", False)


@pytest.mark.parametrize("session_name", ["jane@x.org", "a,b=c", "i-0abc", "1718+x_.-", "botocore-session-1"])
def test_a_sessions_name_may_hold_anything(session: Session, session_name: str) -> None:
    make_role(session, "dev+ops=a,b@c-d_e", "/here/")
    arn = f"arn:aws:sts::123456789012:assumed-role/dev+ops=a,b@c-d_e/{session_name}"
    assert principals.resolve(session, arn).arn == "arn:aws:iam::123456789012:role/here/dev+ops=a,b@c-d_e"


def test_a_federated_user_cannot_have_an_access_entry(session: Session, yard: Yard) -> None:
    arn = "arn:aws:sts::123456789012:federated-user/jane"
    assert principals.resolve(session, arn).kind == "federated-user"
    ran = yard("access", "gpu", arn, "--policy", "view")
    assert (ran.code, "is not a role or user, which an access entry needs" in ran.err) == (2, True)


@pytest.mark.parametrize(
    "arn",
    ["null", "arn:aws:s3:::bucket", "arn:aws:iam::123456789012:group/x", "arn:aws:iam::123456789012:role/"],
)
def test_an_arn_of_no_principal_is_refused(session: Session, arn: str) -> None:
    with pytest.raises(UserError, match=r"ARN|role nor a user") as caught:
        principals.resolve(session, arn)
    assert caught.value.code == 2


def test_whoami_on_the_command_line(moto_server: str) -> None:
    """End to end: a new process, boto3's own configuration, a server behind HTTP."""
    env = {**os.environ, "AWS_ENDPOINT_URL": moto_server, "AWS_REGION": REGION}
    command = [sys.executable, "-m", "tools.cli", "cluster", "whoami"]
    done = subprocess.run(command, cwd=repo.root(), env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "123456789012" in done.stdout
    assert REGION in done.stdout


def test_help_does_not_import_boto3() -> None:
    """`yard cluster --help` is fast."""
    code = "import sys; from tools import cli; cli.invoke(['cluster', '--help']);sys.exit('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=repo.root(), capture_output=True, timeout=180, check=False)
    assert done.returncode == 0
